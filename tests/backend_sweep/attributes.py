"""Each argument of an operator that is no tensor, off its default: negative, zero, another flag, a fraction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.backend_sweep.cases import Case, made_case, operator_cases
from tests.operators.cases import database
from torch_ir import IR, to_torch
from torch_ir.ir import Dtype, OpNode, TensorMeta
from torch_ir.ops.schema import find_operator

KINDS = ("float32", "int64")  # of the tensors; the second for operators that lack the first
_WORDS = (
    ("none", "tanh"),
    (None, "floor", "trunc"),
    ("constant", "reflect", "replicate", "circular"),
    ("sum", "prod", "mean", "amax", "amin"),
    ("linear", "lower", "higher", "midpoint", "nearest"),
    ("ij", "xy"),
    ("L", "U"),
    ("same", "valid"),
)
_NUMBERS: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "reduction": (0, 1, 2),  # an enumeration
    "int": (0, 1, -1, 2, -2, 3),
    "float": (0.0, 0.3, -0.5, 1.0, 2.5),
    "number": (0, 1, -1, 3, 0.3, -0.5),
    "ScalarType": tuple(map(Dtype, ("float32", "float16", "int64", "int32", "bool"))),
}
_FIXED = frozenset(("layout", "device", "pin_memory", "generator", "memory_format", "non_blocking"))


def attribute_cases(part: int = 0, parts: int = 1) -> Iterator[Case]:
    """One of several equal parts of the operators: a case for each value of each argument."""
    tried: set[tuple[Any, ...]] = set()
    count = len(database())
    for kind in KINDS:
        for at in range(part, count, parts):
            for case in operator_cases(kind, at, count, 3):
                if len(case.ir.nodes) != 1 or not set(case.ir.nodes[0].inputs) <= set(case.ir.graph_inputs):
                    continue
                (node,) = case.ir.nodes
                key = (node.op_type, tuple(node.args))
                if key not in tried:
                    tried.add(key)
                    yield from _varied(node, case)


def _varied(node: OpNode, case: Case) -> Iterator[Case]:
    operator = find_operator(node.op_type)
    values = dict(zip(case.ir.graph_inputs, case.runs["sample"][0], strict=True))
    for argument in operator._schema.arguments if operator is not None else ():
        if argument.name in node.attrs and argument.name not in _FIXED:
            old = node.attrs[argument.name]
            kind = "reduction" if argument.name == "reduction" else str(argument.real_type)
            for value in _others(kind, old, len(node.inputs[0].shape) if node.inputs else 0):
                found = _changed(node, argument.name, value, values)
                if found is not None:
                    yield found


def _others(kind: str, old: Any, rank: int) -> Iterator[Any]:
    """Yield other values of an argument, each once."""
    is_optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").rstrip("]") if is_optional else kind.rstrip("]")
    found: list[Any] = [None] if is_optional else []
    if kind.startswith("List["):
        found += _lists(kind.removeprefix("List["), old, rank)
    elif kind == "str":
        found += [word for words in _WORDS if old in words for word in words]
    else:
        found += _NUMBERS.get(kind, ())
        found += [old + 1, -old] if kind in ("int", "number") and type(old) is int else []
    seen = {repr(old)}
    for value in found:
        if repr(value) not in seen:
            seen.add(repr(value))
            yield value


def _lists(kind: str, old: Any, rank: int) -> Iterator[list[Any]]:
    numbers = _NUMBERS.get(kind, ())
    given = old if isinstance(old, (list, tuple)) and old else None
    for length in (len(given),) if given else (1, rank):
        yield from ([number] * length for number in numbers)
    if given and all(isinstance(one, (int, float)) for one in given):
        yield list(given)[::-1]
        yield [given[0] + 1, *given[1:]]
        yield [*given[:-1], given[-1] + 1]


def _changed(node: OpNode, name: str, value: Any, values: dict[TensorMeta, Tensor]) -> Case | None:
    copies: dict[TensorMeta, TensorMeta] = {}

    def copied(tensor: TensorMeta) -> TensorMeta:
        return copies.setdefault(tensor, TensorMeta(tensor.name, tensor.shape, tensor.dtype))

    copy = node.copy(copied)
    copy.attrs = {**copy.attrs, name: value}
    inputs = list(dict.fromkeys(node.inputs))
    tensors = [values[tensor] for tensor in inputs]
    model = to_torch(IR([copy], [copies[tensor] for tensor in inputs], copy.outputs))
    label = (
        f"{node.op_type}({', '.join(_text(one) for one in tensors)}), {name}={value!r:.60} for {node.attrs[name]!r:.60}"
    )
    dtype = str(tensors[0].dtype if tensors else torch.float32).removeprefix("torch.")
    return made_case(label, node.op_type, dtype, model, tensors, special=False)


def _text(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
