"""Symbolic dimensions: the range of each symbol, and the tensor that determines it at run time."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_ir.errors import ExpressionError
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.sizes.expressions import Number, evaluate, names_in

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_EXAMPLE = 8


@dataclass(slots=True)
class Symbol:
    """A named size.

    It is dimension `dim` of `tensor`; if `dim` is None, `tensor` is a scalar that a node computes.
    """

    name: str
    min: int | None = None
    max: int | None = None
    tensor: TensorMeta | None = None
    dim: int | None = None

    def admits(self, value: Number) -> bool:
        """Whether a value is in the range."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    @property
    def example(self) -> int:
        """Return 8, or the value in the range nearest to it."""
        size = max(_EXAMPLE, self.min or 0)
        return size if self.max is None else min(size, self.max)

    @property
    def range(self) -> str:
        """Return the name between its bounds: `1 <= batch <= 32`."""
        low = "" if self.min is None else f"{self.min} <= "
        high = "" if self.max is None else f" <= {self.max}"
        return f"{low}{self.name}{high}"


def symbols_by_tensor(symbols: Iterable[Symbol]) -> dict[TensorMeta, list[Symbol]]:
    """Return the symbols that each tensor determines."""
    found: dict[TensorMeta, list[Symbol]] = {}
    for symbol in symbols:
        if symbol.tensor is not None:
            found.setdefault(symbol.tensor, []).append(symbol)
    return found


def size_conditions(ir: IR) -> list[str]:
    """Return the ranges and constraints of the sizes that inputs determine, as conditions: `n <= 64`."""
    given = [symbol for symbol in ir.symbols.values() if symbol.tensor in ir.graph_inputs]
    lows = [f"{symbol.name} >= {symbol.min}" for symbol in given if symbol.min]
    highs = [f"{symbol.name} <= {symbol.max}" for symbol in given if symbol.max is not None]
    return [*lows, *highs, *ir.constraints]


def ordered_constraints(texts: Iterable[str]) -> list[str]:
    """Return each constraint once, the shortest first: the order in which a captured graph lists and checks them."""
    return sorted(set(texts), key=lambda text: (len(text), text))


def solve(expression: int | str, name: str, size: int, known: Mapping[str, Number]) -> int | None:
    """Solve a linear `expression` == `size` for `name`; None if there is no integer solution."""
    if expression == name:
        return size
    try:
        at_zero = evaluate(expression, {**known, name: 0})
        slope = evaluate(expression, {**known, name: 1}) - at_zero
        value = (size - at_zero) // slope
        return int(value) if evaluate(expression, {**known, name: value}) == size else None
    except (ExpressionError, ZeroDivisionError):
        return None


def broken_constraint(ir: IR) -> str:
    """Return a constraint with sizes within the ranges that violate it; empty if none are found."""
    drawn = random.Random(0)
    choices = {name: _trial_sizes(symbol) for name, symbol in ir.symbols.items() if symbol.tensor in ir.graph_inputs}
    for _ in range(500):
        sizes = {name: drawn.choice(found) for name, found in choices.items()}
        for text in ir.constraints:
            if not _holds(text, sizes):
                against = ", ".join(f"{name} = {sizes[name]}" for name in sorted(names_in(text)))
                return f"{against} is within the range, but the model holds only where {text}"
    return ""


def _holds(text: str, sizes: Mapping[str, int]) -> bool:
    try:
        return bool(evaluate(text, sizes))
    except ExpressionError:  # a division by a size of 0
        return False


def _trial_sizes(symbol: Symbol) -> list[int]:
    low, high = max(symbol.min or 0, 1), symbol.max or 1 << 20  # no empty dimensions
    some = {size for size in (100, 127, 128, 1000, 4096) if low <= size <= high}
    return sorted({*range(low, min(low + 64, high + 1)), *some, high})
