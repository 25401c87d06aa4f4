"""Check arguments against the operator's schema, by name and type: R11.

$.nodes[17].attrs.dim: aten.softmax.int takes int as 'dim', not 'last'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torch_ir.errors import ConversionError, GraphError, did_you_mean
from torch_ir.ir import Device, Dtype, Expr, FunctionRef, Layout, MemoryFormat, OpNode
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.json.json_values import INT64
from torch_ir.ops.schema import Operator, arguments, name_arguments, takes_any_keyword, takes_any_number
from torch_ir.ops.torch_internals import OpOverload, schema_of

Fits = Callable[[Any], bool]


@dataclass(frozen=True)
class ArgumentType:
    """Accepted values of an argument; `text` is its type as in the schema."""

    text: str
    fits: Fits
    takes_tensor: bool = False
    element: ArgumentType | None = None  # of a list


def _is_one_of(*types: type) -> Fits:
    """Accept values of these types; an integer must fit 64 bits, without a sign too if other numbers are accepted."""
    known = frozenset(types)
    most = 2 * INT64 if float in known else INT64
    return lambda value: type(value) in known and (type(value) is not int or -INT64 <= value < most)


# Arguments that index dimensions. torch accepts no symbolic size there, and rewrites compute with them.
_DIM_NAMES = frozenset(
    ("axis", "axis0", "axis1", "destination", "dim", "dim0", "dim1", "dim2", "dims", "end_dim", "source", "start_dim")
)
_NUMBER = _is_one_of(int, float, bool, complex, Expr)
_FITS: dict[str, Fits] = {
    "int": _is_one_of(int, Expr),
    "float": _is_one_of(float, int, Expr),
    "bool": _is_one_of(bool, Expr),
    "number": _NUMBER,
    "Tensor": _NUMBER,  # a number is accepted for a 0-dimensional tensor
    "str": _is_one_of(str),
    "ScalarType": _is_one_of(Dtype),
    "Layout": _is_one_of(Layout),
    "Device": _is_one_of(Device),
    "MemoryFormat": _is_one_of(MemoryFormat),
    "Any": lambda value: not isinstance(value, FunctionRef),
}
_NOTHING = ArgumentType("nothing", lambda value: False)  # generators, storages and packed weights cannot be in a file


def bind_positions(node: OpNode) -> None:
    """Name the tensors of a node that has them by position, or raise GraphError."""
    try:
        name_arguments(node)
    except ConversionError as error:
        raise _error(node, "$.inputs", str(error)) from None


def check_names(node: OpNode, operator: Operator) -> None:
    """Raise GraphError if a node has an unknown argument, or lacks a required one."""
    known = {argument.name for argument in arguments(operator)}
    for name, path in _paths(node):
        base = name.partition(".")[0]
        if base not in known and not _takes_more(operator, base):
            raise _error(node, path, f"{node.op_type} has no argument {base!r:.60}{did_you_mean(base[:100], known)}")
    for name in absent(node, operator, required=True):
        raise _error(node, "$.attrs", f"{node.op_type} lacks the argument {name!r}")


def check_types(node: OpNode, operator: Operator) -> None:
    """Raise GraphError if arguments have other types than their operator takes; their names were checked."""
    if not isinstance(operator, OpOverload):
        return
    table = argument_types(operator)
    for index, name in enumerate(node.args):
        found = _at(table, name)
        if not found.takes_tensor:
            raise _error(node, f"$.args[{index}]", f"{node.op_type} takes {found.text} as {name!r}, not a tensor")
    for name, value in node.attrs.items():
        found = _at(table, name)
        if not found.fits(value):
            raise _error(node, f"$.attrs.{name}", f"{node.op_type} takes {found.text} as {name!r}, not {value!r:.60}")


def absent(node: OpNode, operator: Operator, *, required: bool = False) -> list[str]:
    """Return the arguments of an operator that a node does not have; with `required`, those without a default."""
    given = {name.partition(".")[0] for name in (*node.args, *node.attrs)}
    return [
        argument.name
        for argument in arguments(operator)
        if argument.name not in given and not (required and argument.has_default)
    ]


@cache
def argument_types(operator: OpOverload) -> Mapping[str, ArgumentType]:
    """Return what each argument of an operator accepts."""
    return {argument.name: _of_argument(argument) for argument in schema_of(operator).arguments}


def _of_argument(argument: Any) -> ArgumentType:
    found = _of_type(str(argument.real_type), argument.N)
    if argument.name in _DIM_NAMES and not found.takes_tensor:
        fits = found.fits
        return replace(
            found, fits=lambda value: fits(value) and not any(isinstance(each, Expr) for each in values_in(value))
        )
    default = argument.default_value
    if type(default) is not int or found.fits(default):
        return found
    # torch's number for a dtype or memory format, as in files of earlier releases
    return replace(found, fits=lambda value: found.fits(value) or (type(value) is int and value == default))


def _of_type(text: str, length: int | None = None) -> ArgumentType:
    if text.startswith("Optional["):
        inner = _of_type(text[len("Optional[") : -1], length)
        return ArgumentType(
            f"{inner.text}?", lambda value: value is None or inner.fits(value), inner.takes_tensor, inner.element
        )
    if text.startswith("List["):
        return _list_of(_of_type(text[len("List[") : -1]), length)
    return ArgumentType(text, _FITS.get(text, _NOTHING.fits), text in ("Tensor", "Any"))


def _list_of(element: ArgumentType, length: int | None) -> ArgumentType:
    def fits(value: Any) -> bool:
        if not isinstance(value, (list, tuple)):
            return length is not None and element.fits(value)  # one number for all of `int[2]`
        return _is_length(len(value), element, length) and all(map(element.fits, value))

    return ArgumentType(f"{element.text}[{'' if length is None else length}]", fits, element=element)


def _is_length(found: int, element: ArgumentType, length: int | None) -> bool:
    """Whether a list length is valid: `int[2]` may also be one number, or empty; `int[1]` may have any length."""
    if length is None or length == 1 or found == length:
        return True
    return element.text != "bool" and found < 2


def _at(table: Mapping[str, ArgumentType], name: str) -> ArgumentType:
    """Return what an argument, or an element such as `tensors.0`, accepts."""
    base, *places = name.split(".")
    found = table[base]
    for _ in places:
        found = found.element or _NOTHING
    return found


def _takes_more(operator: Operator, name: str) -> bool:
    """Whether a higher-order operator accepts an argument that it does not name."""
    if isinstance(operator, OpOverload):
        return False
    return takes_any_keyword(operator) or (takes_any_number(operator) and name[:3] == "arg" and name[3:].isdecimal())


def _paths(node: OpNode) -> Iterator[tuple[str, str]]:
    """Yield the name of each argument, with its JSON path."""
    yield from ((name, f"$.args[{index}]") for index, name in enumerate(node.args))
    yield from ((name, f"$.attrs.{name}") for name in node.attrs)


def _error(node: OpNode, path: str, message: str) -> GraphError:
    return GraphError(message, path, rule="R11", node=node.name)
