"""The table of rules: operator -> a function that writes it.

@lowers("aten.where.self")
def where(hlo, made, condition, self, other):
    return hlo.select(...)

`made` are the outputs of the node; the other parameters are the operator's arguments, tensors as values of the text.
A rule that cannot write its operator raises ConversionError with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

from torch_ir.errors import RegistryError
from torch_ir.targets.stablehlo.operations import Value

Rule = Callable[..., Union[Value, Sequence[Value]]]
Made = TypeVar("Made", bound=Rule)
RULES: dict[str, Rule] = {}


def lowers(*op_types: str) -> Callable[[Made], Made]:
    """Make a function the rule of operators."""

    def register(rule: Made) -> Made:
        for op_type in op_types:
            add(op_type, rule)
        return rule

    return register


def add(op_type: str, rule: Rule) -> None:
    if op_type in RULES:
        raise RegistryError(f"{op_type} already has a rule")
    RULES[op_type] = rule


def axis(dim: int, rank: int) -> int:
    """Return a dimension counted from the first."""
    return dim % rank if rank else 0


def axes(dims: Any, rank: int) -> list[int]:
    """Return dimensions counted from the first; all of them for None or an empty list."""
    if not rank:
        return []
    listed = [dims] if isinstance(dims, int) else list(dims or ())
    return sorted({axis(dim, rank) for dim in listed}) if listed else list(range(rank))
