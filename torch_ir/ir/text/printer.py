"""The text form: one line per node, the same text for the same graph; `IR.parse` reads it back.

graph SimpleMLP(x: float32[1, 4]) {
  param p_fc1_weight: float32[8, 4] = "fc1.weight"
  linear: float32[1, 8] = aten.linear.default(input=x, weight=p_fc1_weight, bias=None)
  return linear
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.ir.graph.attr_order import ordered
from torch_ir.ir.graph.attr_types import FunctionRef
from torch_ir.ir.graph.io_tree import Branch, Slot, Tree, call, flat
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.sizes.expressions import Expr
from torch_ir.ir.text.bare_words import ARGUMENT, PART, RESERVED, TYPE, WORD, default_name, quoted
from torch_ir.ir.text.text_constants import print_data

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_BRACKETS = {"tuple": "()", "list": "[]", "dict": "{}", "object": "()"}


def print_graph(ir: IR, *, whole: bool = False) -> str:
    """Print the graph, functions first; a nested function is called `outer.inner`.

    Long constants are printed without their values unless `whole` is set.
    """
    name = f" {_quoted_unless(WORD, ir.model_name)}" if ir.model_name else ""
    return "\n".join([*_print_functions(ir, "", whole), _print_one(ir, f"graph{name}", whole)])


def _print_functions(ir: IR, outer: str, whole: bool) -> Iterator[str]:
    for name, body in ir.functions.items():
        path = f"{outer}{_quoted_unless(PART, name)}"
        yield from _print_functions(body, f"{path}.", whole)
        yield _print_one(body, f"function {path}", whole, is_function=True)


def print_node(node: OpNode) -> str:
    """Print one node: outputs, operator and arguments."""
    inputs = zip(node.args, map(_reference, node.inputs), strict=False)  # an erased node has none
    named = {**dict(inputs), **{name: print_value(value) for name, value in ordered(node.op_type, node.attrs).items()}}
    arguments = ", ".join(f"{_quoted_unless(ARGUMENT, name)}={text}" for name, text in named.items())
    call = f"{_quoted_unless(WORD, node.op_type)}({arguments})"
    if node.name != default_name([tensor.name for tensor in node.outputs]):
        call += f" as {_quoted_unless(WORD, node.name)}"
    return f"{', '.join(map(_typed, node.outputs))} = {call}" if node.outputs else call


def print_value(value: Any) -> str:
    """Print an attribute: typed names bare, strings quoted."""
    if isinstance(value, FunctionRef):
        return f"@{_quoted_unless(PART, str(value))}"
    if isinstance(value, Expr):
        return f"{{{value}}}"
    if isinstance(value, str):
        return str(value) if type(value) is not str else repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(print_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {print_value(item)}' for key, item in value.items())}}}"
    return repr(value)


def shape_text(tensor: TensorMeta) -> str:
    """Return `1x3x224x224`, or `scalar`; a symbolic shape uses a multiplication sign, as x could be part of a name."""
    return ("x" if tensor.is_static else "\N{MULTIPLICATION SIGN}").join(map(_dim_text, tensor.shape)) or "scalar"


def _dim_text(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) or re.fullmatch(r"\w+", dim) else f"({dim})"


def _print_one(ir: IR, title: str, whole: bool, *, is_function: bool = False) -> str:
    lines = [f"{title}({', '.join(map(_typed, ir.graph_inputs))}) {{", *_print_header(ir, is_function)]
    for symbol in ir.symbols.values():
        place = "" if symbol.tensor is None else f" from {_reference(symbol.tensor)}"
        lines.append(f"  symbol {symbol.range}{place}{'' if symbol.dim is None else f'[{symbol.dim}]'}")
    lines += [f"  require {text}" for text in ir.constraints]
    lines += [f"  {_print_param(tensor, whole)}" for tensor in ir.params]
    lines += [f"  uses @{_quoted_unless(PART, name)}" for name in ir.functions]
    lines += [f"  {print_node(node)}" for node in ir.nodes]
    lines += [f"  {_reference(target)} := {_reference(value)}" for target, value in ir.mutations]
    lines.append(f"  return {_print_outputs(ir, is_function)}".rstrip())
    return "\n".join([*lines, "}"]) + "\n"


def _print_header(ir: IR, is_function: bool) -> Iterator[str]:
    """Yield the lines of graph properties that differ from their defaults."""
    if is_function and ir.model_name:
        yield f"  model {_quoted_unless(WORD, ir.model_name)}"
    if ir.device != "cpu":
        yield f"  device {ir.device}"
    if ir.fixed_layout:
        yield f"  fixed_layout {ir.fixed_layout!r}"
    yield from (f"  mesh {axis} = {size}" for axis, size in ir.mesh.items())
    for key, value in ir.extensions.items():
        yield f"  extension {_json(key) if key.isprintable() else repr(key)} = {_json(value)}"
    if ir.input_tree != call(len(ir.graph_inputs)):
        yield f"  inputs {_print_tree(ir.input_tree, [_reference(tensor) for tensor in ir.graph_inputs])}"


def _json(value: Any) -> str:
    """Return JSON on one line without control characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value).replace("\x7f", "\\u007f")


def _print_param(tensor: TensorMeta, whole: bool) -> str:
    param = tensor.param
    if param is None:  # invalid, but printing must work for debugging
        return f"param {_typed(tensor)}"
    keys = " = ".join(map(_json, param.keys))
    kind = "param" if param.kind == "parameter" else param.kind
    values = "" if param.data is None else f" values {print_data(param.data, whole=whole)}"
    return f"{kind} {_typed(tensor)} = {keys}{values}"


def _print_outputs(ir: IR, is_function: bool) -> str:
    """Print the returned structure in Python syntax; in a function, a single tensor means a list of one."""
    names = [_reference(tensor) for tensor in ir.graph_outputs]
    tree = ir.output_tree
    if tree == flat(len(names)):
        return ", ".join(names) + ("," if len(names) == 1 and not is_function else "")
    text = _print_tree(tree, names)
    if isinstance(tree, Slot):
        return f"({text})" if is_function else text
    slots = list(_slots(tree))
    return text if slots == sorted(slots) else f"{text} slots {slots}"


def _slots(tree: Tree) -> Iterator[int]:
    if isinstance(tree, Branch):
        for item in tree.items:
            yield from _slots(item)
    elif isinstance(tree, Slot):
        yield int(tree)


def _print_tree(tree: Tree, names: Sequence[str]) -> str:
    if isinstance(tree, Slot):
        return names[tree]
    if not isinstance(tree, Branch):
        return f"={print_value(tree)}" if isinstance(tree, (list, tuple, dict)) else print_value(tree)
    items = [_print_tree(item, names) for item in tree.items]
    if tree.keys:
        dot, sign = "" if tree.kind == "dict" else ".", "=" if tree.kind == "tuple" else ": "
        keys = [key if _is_bare(key) else f"{dot}{_print_key(key)}" for key in tree.keys]
        items = [f"{key}{sign}{item}" for key, item in zip(keys, items, strict=True)]
    elif tree.kind == "tuple" and len(items) == 1:
        items = [f"{items[0]},"]
    marks = _BRACKETS[tree.kind]
    return f"{_print_type(tree)}{marks[0]}{', '.join(items)}{marks[1]}"


def _print_type(tree: Branch) -> str:
    """Return the class of a container, with its kind where brackets and keys do not imply it."""
    name = tree.type_name
    text = name if not name or TYPE.fullmatch(name) else repr(name)
    is_clear = tree.kind in ("list", "dict") or tree.keys or tree.kind == ("object" if name else "tuple")
    return text if is_clear else f"{tree.kind} {text}"


def _is_bare(key: Any) -> bool:
    return type(key) is str and PART.fullmatch(key) is not None and key not in RESERVED


def _print_key(key: Any) -> str:
    """Print a key that is not a plain name: a value, or a tuple of values."""
    if not isinstance(key, tuple):
        return print_value(key)
    return f"({', '.join(map(_print_key, key))}{',' if len(key) == 1 else ''})"


def _typed(tensor: TensorMeta) -> str:
    strides = "" if tensor.stride is None else f" strides [{', '.join(map(_print_dim, tensor.stride))}]"
    placed = "" if tensor.placement is None else f" on {', '.join(tensor.placement)}"
    return f"{_reference(tensor)}: {tensor.dtype}[{', '.join(map(_print_dim, tensor.shape))}]{strides}{placed}"


def _print_dim(dim: Dim) -> str:
    """Print a size; an expression that would not parse back to the same text is quoted."""
    if not isinstance(dim, str):
        return str(dim)
    return f'"{dim}"' if dim != dim.strip() or dim.isdecimal() or not dim else str(dim)


def _reference(tensor: TensorMeta) -> str:
    """Print a tensor's name, quoted where it would be parsed as something else."""
    name = tensor.name
    return name if WORD.fullmatch(name) and name not in RESERVED else quoted(name)


def _quoted_unless(pattern: re.Pattern[str], name: str) -> str:
    return name if pattern.fullmatch(name) else quoted(name)
