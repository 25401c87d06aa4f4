"""Symbolic dimensions: each symbol's range and the place that gives it its value at run time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_ir.errors import ExpressionError
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.sizes.expressions import Number, evaluate

_EXAMPLE = 8


@dataclass(slots=True)
class Symbol:
    """A named size.

    It is read off dimension `dim` of `tensor`; with `dim` None, `tensor` is a number that a node computed.
    """

    name: str
    min: int | None = None
    max: int | None = None
    tensor: TensorMeta | None = None
    dim: int | None = None

    def admits(self, value: Number) -> bool:
        """Whether a value is in its range."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    @property
    def example(self) -> int:
        """A size in its range: 8, or the nearest to that."""
        size = max(_EXAMPLE, self.min or 0)
        return size if self.max is None else min(size, self.max)

    @property
    def range(self) -> str:
        """Its name between its bounds: `1 <= batch <= 32`."""
        low = "" if self.min is None else f"{self.min} <= "
        high = "" if self.max is None else f" <= {self.max}"
        return f"{low}{self.name}{high}"


def solve(expression: int | str, name: str, size: int, known: Mapping[str, Number]) -> int | None:
    """The value of `name` that makes a linear `expression` equal to `size`; None if there is no whole one."""
    if expression == name:
        return size
    try:
        at_zero = evaluate(expression, {**known, name: 0})
        slope = evaluate(expression, {**known, name: 1}) - at_zero
        value = (size - at_zero) // slope
        return int(value) if evaluate(expression, {**known, name: value}) == size else None
    except (ExpressionError, ZeroDivisionError):
        return None
