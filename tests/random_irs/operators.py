"""Calls of torch's operators: arguments by schema, and results by torch's shape rules where possible."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from torch._ops import OpOverload

from tests.random_irs.draws import Draw
from tests.random_irs.values import Values
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import ShapeError
from torch_ir.ir import TensorMeta
from torch_ir.ops.effects import is_forbidden
from torch_ir.ops.schema import arguments, find_operator, operator_names
from torch_ir.ops.torch_types import to_name

_NEVER = ("StorageType", "StreamObjType", "ClassType")  # argument types that a graph cannot represent


class Call(NamedTuple):
    """An operator with its arguments, tensors apart from the rest."""

    op_type: str
    inputs: dict[str, TensorMeta]
    attrs: dict[str, Any]


@cache
def operators(*, tame: bool) -> list[OpOverload]:
    """Return registered operators with representable arguments; tame ones write nothing and are always allowed."""
    names = sorted(name for namespace in ("aten", "prims") for name in operator_names(namespace))
    found = [find_operator(name) for name in names if not (tame and is_forbidden(name))]
    return [op for op in found if isinstance(op, OpOverload) and _can_be_said(op, tame)]


def _can_be_said(operator: OpOverload, tame: bool) -> bool:
    schema = operator._schema
    if tame and (schema.is_mutable or not schema.returns or not _gives_tensors(operator)):
        return False
    return not any(_root(argument.real_type) in _NEVER for argument in schema.arguments)


def _gives_tensors(operator: OpOverload) -> bool:
    return all(_root(result.real_type) == "TensorType" for result in operator._schema.returns)


def _root(kind: Any) -> str:
    while kind.kind() in ("ListType", "OptionalType"):
        kind = kind.getElementType()
    return str(kind.kind())


def drawn(operator: OpOverload, draw: Draw, values: Values, tensors: Sequence[TensorMeta]) -> Call | None:
    """A call on some of these tensors; None where one is needed and there is none."""
    inputs: dict[str, TensorMeta] = {}
    attrs: dict[str, Any] = {}
    for argument, schema in zip(arguments(operator), operator._schema.arguments, strict=True):
        kind, first = schema.real_type, next(iter(inputs.values()), None)
        if argument.has_default and draw.chance(0.5):
            attrs[argument.name] = [] if argument.is_tensor_list else _name(argument.default)
        elif _root(kind) == "TensorType":
            if not tensors:
                return None
            _give_tensors(argument.name, kind, draw, _alike(first, draw, tensors), inputs, attrs)
        else:
            rank = 0 if first is None else len(first.shape)
            attrs[argument.name] = values.of(kind, argument.name, rank, schema.N)
    return Call(str(operator), inputs, attrs)


def _name(default: Any) -> Any:
    return [_name(item) for item in default] if isinstance(default, (list, tuple)) else to_name(default)


def _give_tensors(
    name: str,
    kind: Any,
    draw: Draw,
    tensors: Sequence[TensorMeta],
    inputs: dict[str, TensorMeta],
    attrs: dict[str, Any],
) -> None:
    """One tensor, none, or the elements of a list under `name.0`, `name.1`."""
    outer = kind.kind()
    if outer == "OptionalType" and draw.chance(0.5):
        attrs[name] = None
    elif outer != "ListType" and not (outer == "OptionalType" and kind.getElementType().kind() == "ListType"):
        inputs[name] = draw.choice(tensors)
    else:
        may_lack = "Optional" in str(kind)
        count = draw.randint(0, 3)
        if not count:
            attrs[name] = []
        for index in range(count):
            if may_lack and draw.chance(0.3):
                attrs[f"{name}.{index}"] = None
            else:
                inputs[f"{name}.{index}"] = draw.choice(tensors)


def _alike(first: TensorMeta | None, draw: Draw, tensors: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
    """Mostly draw tensors like the first, because operators accept those together."""
    if first is None or draw.chance(0.3):
        return tensors
    return [tensor for tensor in tensors if (tensor.dtype, len(tensor.shape)) == (first.dtype, len(first.shape))]


def made(call: Call, shapes: Shapes) -> list[TensorMeta] | str | None:
    """Return the result of a call, the reason for a failure, or None if torch cannot infer it."""
    try:
        return shapes.results(call.op_type, call.inputs, call.attrs)
    except ShapeError as error:
        return str(error)
