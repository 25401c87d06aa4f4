"""Distinguish mistyped operator names from ones that are only unknown in this process.

Only torch's own namespaces are checked: others may be registered later, or on another machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch_ir.errors import did_you_mean
from torch_ir.ir.graph.operator_names import install_check
from torch_ir.ops.registry import get_conversion_fn, get_execution_fn
from torch_ir.ops.schema import arguments, find_operator, overloads_by_name
from torch_ir.ops.torch_internals import OpOverload

_JUDGED = frozenset(
    ("aten", "prims", "quantized", "_quantized", "quantized_decomposed", "_c10d_functional", "higher_order")
)
_overloads: Mapping[str, list[str]] = {}  # by name without overload


def objection(op_types: Collection[str], names: Collection[str]) -> str:
    """Return the problem with a call of one of these operators with these argument names; empty if there is none."""
    for op_type in op_types:
        if message := operator_objection(op_type):
            return message
    return argument_objection(op_types, names)


def operator_objection(op_type: str) -> str:
    """Return why a name, with or without overload, must be mistyped; empty if it may be valid."""
    namespace = op_type.partition(".")[0]
    if namespace not in _JUDGED or find_operator(op_type) is not None or _overloads_of(op_type):
        return ""
    if get_conversion_fn(op_type) is not None or get_execution_fn(op_type) is not None:  # user-defined
        return ""
    siblings = _overloads_of(op_type.rpartition(".")[0])
    known = siblings or [name for base, found in _overloads.items() for name in (base, *found)]
    near = did_you_mean(op_type, (name for name in known if name.startswith(f"{namespace}.")))
    return f"torch has no operator {op_type!r}{near}"


def _overloads_of(base: str) -> list[str]:
    """Return the operators of a name without overload; the registered ones are listed again for a new name."""
    global _overloads
    if base not in _overloads:
        _overloads = overloads_by_name()  # a new table, as other threads may read the old one
    return _overloads.get(base, [])


def argument_objection(op_types: Collection[str], names: Collection[str]) -> str:
    """Return the problem with the first name that no schema of these operators has; empty if there is none."""
    known: dict[str, None] = {}
    for op_type in op_types:
        found = list(_operators(op_type))
        if not found:
            return ""
        known.update((argument.name, None) for operator in found for argument in arguments(operator))
    for name in names:
        base = name.partition(".")[0]
        if base not in known and not base.isdecimal():  # a position, if a node has no names
            near = did_you_mean(base, known) or f"; there are: {', '.join(known)}"
            return f"{' | '.join(op_types)} has no argument {base!r}{near}"
    return ""


def _operators(op_type: str) -> Iterator[OpOverload]:
    """Yield the operator of that name, or all overloads; higher-order operators have no schema and are skipped."""
    operator = find_operator(op_type)
    found = [operator] if operator is not None else map(find_operator, _overloads_of(op_type))
    yield from (each for each in found if isinstance(each, OpOverload))


install_check(objection)
