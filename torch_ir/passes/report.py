"""What passes bought: nodes, FLOPs, bytes, memory and weights before and after, pass by pass and change by change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from torch_ir.analysis.amounts import total, weight_of
from torch_ir.analysis.cost import cost
from torch_ir.analysis.cost_text import human
from torch_ir.analysis.liveness import liveness
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.functions import called_by
from torch_ir.ir.records import Dim
from torch_ir.passes.proof import Proof
from torch_ir.rewrite.journal import Change, Decline

_TITLES = {
    "nodes": ("nodes per run", ""),
    "once": ("nodes computed once", ""),
    "flops": ("FLOPs", ""),
    "bytes": ("bytes moved", "B"),
    "peak": ("peak memory", "B"),
    "params": ("parameters read", ""),
}
_SHOWN_NODES = 6


@dataclass(frozen=True)
class Measure:
    """What a graph costs in every run; `once` are the nodes that are computed only when weights are bound."""

    nodes: int
    once: int
    flops: Dim
    bytes: Dim
    peak: Dim
    params: int


def measured(ir: IR) -> Measure:
    """The measure of a graph as it is now; of a file with several entry points, that of all of them."""
    called = set(called_by(ir.nodes))
    entries = [body for name, body in ir.functions.items() if name not in called]
    parts = [cost(graph) for graph in (ir, *entries)]
    params = sum(math.prod(int(dim) for dim in param.shape) for param in ir.params if _is_read(param))
    return Measure(
        sum(len(part.per_run.nodes) for part in parts),
        sum(len(part.once.nodes) for part in parts),
        total(part.per_run.flops for part in parts),
        total(part.per_run.bytes for part in parts),
        max((liveness(graph).peak for graph in (ir, *entries)), key=weight_of),
        params,
    )


def _is_read(param: TensorMeta) -> bool:
    """Whether this is a weight of a checkpoint, not a constant of the graph itself, and some node needs it."""
    return bool(param.consumers) and param.param is not None and param.param.in_state_dict


@dataclass(frozen=True)
class Row:
    """One application of a pass that changed something, and the graph after it, where that was asked for."""

    name: str
    changes: int
    after: Measure | None = None


@dataclass(frozen=True)
class Report:
    """What `optimize` did; what the graphs cost is measured when it is first asked for."""

    given: IR
    better: IR
    passes: Sequence[Row]
    changes: Sequence[Change] = field(default_factory=list)
    declined: Sequence[Decline] = field(default_factory=list)
    proof: Proof | None = None

    @cached_property
    def before(self) -> Measure:
        return measured(self.given)

    @cached_property
    def after(self) -> Measure:
        return measured(self.better)

    def to_dict(self) -> dict[str, Any]:
        return {
            "before": asdict(self.before),
            "after": asdict(self.after),
            "passes": [asdict(row) for row in self.passes],
            "changes": [asdict(change) for change in self.changes],
            "declined": [asdict(decline) for decline in self.declined],
            "proof": None if self.proof is None else asdict(self.proof),
        }

    def __str__(self) -> str:
        return "\n".join([*_aligned(self._summary()), *self._by_pass(), *self._verdict()])

    def explained(self, word: str = "") -> str:
        """Every change by rule, then every decline with its reason; with a word, those that hold it."""
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
        return "\n".join(lines) or f"nothing was changed or declined{f' that holds {word!r}' if word else ''}"

    def _summary(self) -> Iterator[list[str]]:
        yield ["", "before", "after", "change"]
        for name, (title, unit) in _TITLES.items():
            old, new = getattr(self.before, name), getattr(self.after, name)
            yield [title, human(old, unit), human(new, unit), _change(old, new)]

    def _by_pass(self) -> list[str]:
        if not self.passes:
            return ["", "no pass found anything to do"]
        table = [["pass", "changes", *(_titles() if self.passes[0].after else ())]]
        for row in self.passes:
            amounts = (
                [human(getattr(row.after, name), unit) for name, (_, unit) in _TITLES.items()] if row.after else []
            )
            table.append([row.name, str(row.changes), *amounts])
        return ["", *_aligned(table)]

    def _verdict(self) -> list[str]:
        return [] if self.proof is None else ["", f"verified: {self.proof}" if self.proof.is_valid else str(self.proof)]


def _titles() -> list[str]:
    return [title for title, _ in _TITLES.values()]


def _aligned(rows: Any) -> list[str]:
    """Columns, the first to the left and numbers to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    ]


def _change(old: Dim, new: Dim) -> str:
    before, after = weight_of(old), weight_of(new)
    return "" if not before or before == after else f"{(after - before) / before:+.1%}"


def _counted(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN_NODES} more" if len(nodes) > _SHOWN_NODES else ""
    times = "once" if len(nodes) == 1 else f"{len(nodes)} times"
    return f"{times}, at {', '.join(nodes[:_SHOWN_NODES])}{more}"
