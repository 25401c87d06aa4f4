"""Tensors and nodes of the text form: `relu: float32[2, 3] = aten.relu.default(self=x)`."""

from __future__ import annotations

import re
from typing import Any

from torch_ir.errors import suggestion
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.placements import PLACEMENT
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.text.bare_words import ARGUMENT, PART, WORD, default_name
from torch_ir.ir.text.graph_draft import Draft
from torch_ir.ir.text.line_cursor import Cursor
from torch_ir.ir.text.value_syntax import at_tensor, read_dims, read_value

_STRIDES = re.compile(r"strides(?= *\[)")
_ON = re.compile(r"on +(?=replicate|shard|partial|padded)")
_NEXT_PLACEMENT = re.compile(r", *(?=replicate(?![\w.:])|shard\(|partial\(|padded\()")
_AS = re.compile(r"as +")


def read_tensor(cursor: Cursor) -> TensorMeta:
    """Read `name: dtype[sizes]`, with optional strides and placements."""
    name = cursor.name(WORD, "the name of a tensor")
    cursor.expect(":")
    start, dtype = cursor.at, cursor.match(PART)
    if dtype not in DTYPES:
        hint = suggestion(str(dtype), DTYPES)
        raise cursor.error(f"unknown dtype {str(dtype or '')!r:.60}", start, rule="R5", hint=hint)
    shape = read_dims(cursor)
    stride = read_dims(cursor) if cursor.match(_STRIDES) else None
    placement = _read_placement(cursor) if cursor.match(_ON) else None
    return TensorMeta(name, shape, dtype, stride=stride, placement=placement)


def _read_placement(cursor: Cursor) -> list[str]:
    found: list[str] = []
    while not found or cursor.match(_NEXT_PLACEMENT):
        text = cursor.match(PLACEMENT)
        if text is None:
            raise cursor.expected("a placement such as replicate, shard(0) or partial(sum)")
        found.append(text)
    return found


def read_call(draft: Draft, cursor: Cursor, outputs: list[TensorMeta]) -> OpNode:
    op_type = cursor.name(WORD, "the name of an operator")
    cursor.expect("(")
    inputs: dict[str, TensorMeta] = {}
    attrs: dict[str, Any] = {}
    for _ in cursor.items(")"):
        at, argument = cursor.at, cursor.name(ARGUMENT, "the name of an argument")
        if argument in inputs or argument in attrs:
            raise cursor.error(f"duplicate argument {argument!r:.80}", at, rule="R8")
        cursor.expect("=")
        at = cursor.at
        if at_tensor(cursor):
            inputs[argument] = draft.find(cursor.name(WORD, "a tensor"), cursor, at)
        else:
            attrs[argument] = read_value(cursor)
    has_name = cursor.match(_AS) is not None
    at = cursor.at
    name = cursor.name(WORD, "a name") if has_name else default_name([tensor.name for tensor in outputs])
    cursor.end()
    if not name:
        raise cursor.error("a node that makes no tensor needs a name", at, hint="write 'as NAME' after it")
    is_numbered = list(inputs) == list(map(str, range(len(inputs))))
    return OpNode(name, op_type, inputs.values(), outputs, attrs, args=() if is_numbered else inputs)
