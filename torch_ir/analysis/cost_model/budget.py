"""Budgets: by how much the cost of a graph may grow: `flops+5%`, `nodes+0`, `peak+10MB`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch_ir.analysis.cost_model.cost_summary import TITLES, change
from torch_ir.analysis.cost_model.delta import CostDelta
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import CommandError, did_you_mean
from torch_ir.ir.text.amounts import human

_SPELLING = re.compile(r"([a-z]+)(?:\s*\+\s*(\d+(?:\.\d+)?)\s*(?:(%)|([kMGT]?)B?))?")
_SCALES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Budget:
    """A measure, and how much it may grow: by an absolute amount, or by a share of its old value."""

    name: str
    growth: float
    is_share: bool
    text: str

    @classmethod
    def parse(cls, text: str) -> Budget:
        found = _SPELLING.fullmatch(text.strip())
        if found is None or found[1] not in TITLES:
            hint = did_you_mean(found[1], TITLES) if found else "; write it as flops+5%, nodes+0 or peak+10MB"
            raise CommandError(f"invalid budget {text!r:.60}; measures are {', '.join(TITLES)}{hint}")
        number = float(found[2] or 0)
        growth = number / 100 if found[3] else number * _SCALES[found[4] or ""]
        return cls(found[1], growth, bool(found[3]), text.strip())

    def excess(self, delta: CostDelta) -> str:
        """Return a sentence on how far the second graph exceeds the budget; empty if it does not."""
        old, new = getattr(delta.before, self.name), getattr(delta.after, self.name)
        before, after = weight_of(old), weight_of(new)
        if after <= before + (before * self.growth if self.is_share else self.growth):
            return ""
        title, unit = TITLES[self.name]
        message = f", {change(old, new)}" if change(old, new) else ""
        return f"{title} grew from {human(old, unit)} to {human(new, unit)}{message}; the budget is {self.text}"


def excesses(budgets: Iterable[Budget], deltas: Mapping[str, CostDelta]) -> list[str]:
    """Return a sentence for every exceeded budget, for every entry point."""
    found = [(name, budget.excess(delta)) for budget in budgets for name, delta in deltas.items()]
    return [f"{name}: {message}" if name else message for name, message in found if message]
