"""The report of an optimisation: nodes, FLOPs, bytes, memory and weights before and after, by pass and by change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from torch_ir.analysis.cost_model.cost_summary import TITLES, Measure, measured_in_all, side_by_side
from torch_ir.errors import listed
from torch_ir.ir import IR
from torch_ir.ir.text.amounts import human
from torch_ir.ir.text.text_table import aligned
from torch_ir.passes.random_check import Proof
from torch_ir.rewrite.change_log import Change, Decline

_MEASURES = ("nodes", "once", "flops", "bytes", "peak", "params")
_SHOWN_NODES = 6
_LEAST = (7, 3, 6, 5, 4)  # columns to drop first on a narrow terminal


@dataclass(frozen=True)
class Row:
    """One run of a pass that changed something, and the cost after it if requested."""

    name: str
    changes: int
    after: Measure | None = None


@dataclass(frozen=True)
class Report:
    """Report of `optimize`; costs are measured on first access."""

    given: IR
    better: IR
    passes: Sequence[Row]
    changes: Sequence[Change] = field(default_factory=list)
    declined: Sequence[Decline] = field(default_factory=list)
    proof: Proof | None = None

    @cached_property
    def before(self) -> Measure:
        return measured_in_all(self.given)

    @cached_property
    def after(self) -> Measure:
        return measured_in_all(self.better)

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": asdict(self.before),
            "after": asdict(self.after),
            "passes": [asdict(row) for row in self.passes],
            "changes": [asdict(change) for change in self.changes],
            "declined": [asdict(decline) for decline in self.declined],
            "proof": None if self.proof is None else asdict(self.proof),
        }

    def text(self, width: int | None = None) -> str:
        """Return the report as tables of at most this width."""
        summary = aligned(side_by_side(self.before, self.after, _MEASURES), width=width)
        return "\n".join([*summary, *self._by_pass(width), *self._verdict()])

    def __str__(self) -> str:
        return self.text()

    def explained(self, word: str = "") -> str:
        """List all changes by rule, then all declines by reason; only those that contain `word`, if given."""
        done: dict[str, list[str]] = {}
        for change in self.changes:
            if word in f"{change.rule} {change.node} {' '.join(change.origins)}":
                done.setdefault(change.rule, []).append(change.node)
        refused: dict[tuple[str, str], list[str]] = {}
        for decline in self.declined:
            if word in f"{decline.rule} {decline.node} {decline.why}":
                refused.setdefault((decline.rule, decline.why), []).append(decline.node)
        lines = [f"{rule}: {_counted(nodes)}" for rule, nodes in done.items()]
        lines += [f"{rule} declined: {why}: {_counted(nodes)}" for (rule, why), nodes in refused.items()]
        return "\n".join(lines) or f"no changes or declines{f' that mention {word!r}' if word else ''}"

    def _by_pass(self, width: int | None) -> list[str]:
        if not self.passes:
            return ["", "no pass changed anything"]
        table = [["pass", "changes", *(TITLES[name][0] for name in _MEASURES if self.passes[0].after)]]
        for row in self.passes:
            amounts = [human(getattr(row.after, name), TITLES[name][1]) for name in _MEASURES] if row.after else []
            table.append([row.name, str(row.changes), *amounts])
        least = [column for column in _LEAST if column < len(table[0])]
        return ["", *aligned(table, width=width, least=least)]

    def _verdict(self) -> list[str]:
        return [] if self.proof is None else ["", f"verified: {self.proof}" if self.proof.is_valid else str(self.proof)]


def _counted(nodes: Sequence[str]) -> str:
    times = "once" if len(nodes) == 1 else f"{len(nodes)} times"
    return f"{times}, at {listed(nodes, _SHOWN_NODES)}"
