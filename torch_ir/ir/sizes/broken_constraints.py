"""Search for sizes within the ranges of a graph that violate one of its constraints."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch_ir.errors import ExpressionError
from torch_ir.ir.sizes.expressions import evaluate, names_in
from torch_ir.ir.sizes.symbols import Symbol

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_TRIALS = 500


def broken_constraint(ir: IR) -> str:
    """Return a constraint with sizes within the ranges that violate it; empty if none are found."""
    drawn = random.Random(0)
    choices = {name: _trial_sizes(symbol) for name, symbol in ir.symbols.items() if symbol.tensor in ir.graph_inputs}
    for _ in range(_TRIALS):
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
    low = max(symbol.min or 0, 1)  # no empty dimensions
    high = symbol.max or 1 << 20
    return sorted(
        {
            *range(low, min(low + 64, high + 1)),
            *(size for size in (100, 127, 128, 1000, 4096) if low <= size <= high),
            high,
        }
    )
