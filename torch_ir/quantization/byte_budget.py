"""One choice for each item with the least total loss within a budget: multiple-choice knapsack, exact by DP."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_ir.errors import QuantizationError
from torch_ir.ops.neutral_state import neutral

_UNITS = 20_000  # the budget in units; sizes are rounded up to whole units, so that the budget always holds


@neutral
def best_choice(items: Sequence[Sequence[tuple[int, float]]], budget: int) -> list[int]:
    """Return the index of the choice, a (size, loss) pair, for each item; raise QuantizationError if none fits."""
    unit = max(1, -(-budget // _UNITS))
    count = max(0, budget // unit)
    best = torch.zeros(count + 1, dtype=torch.float64)
    taken = []
    for choices in items:
        options = torch.full((len(choices), count + 1), torch.inf, dtype=torch.float64)
        for row, (size, loss) in zip(options, choices, strict=True):
            units = -(-size // unit)
            if units <= count:
                row[units:] = best[: count + 1 - units] + loss
        best, picked = options.min(0)
        taken.append(picked)
    least = sum(min(size for size, _ in choices) for choices in items)
    if budget < 0 or not torch.isfinite(best[-1]):
        raise QuantizationError(f"a budget of {budget} bytes is too small: the layers take at least {least} bytes")
    found, left = [], count
    for choices, picked in zip(reversed(items), reversed(taken), strict=True):
        found.append(int(picked[left]))
        left -= -(-choices[found[-1]][0] // unit)
    return found[::-1]
