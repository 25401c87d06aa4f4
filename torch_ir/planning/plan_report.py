"""The report of a search: the chosen plan, what it does, and the next best ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch_ir.ir.text.amounts import duration, human, plural
from torch_ir.ir.text.text_table import aligned
from torch_ir.planning.plan_file import Axis, ParallelPlan
from torch_ir.planning.prices import Cluster

_TITLES = ("plan", "devices", "time", "between runs", "memory per rank", "sent per rank")
_KINDS = {
    "rowwise": "tensor", "colwise": "tensor", "packed_colwise": "tensor", "embedding_rowwise": "tensor",
    "embedding_colwise": "tensor", "grouped_gemm": "expert", "all_to_all": "expert", "ring": "context",
}  # fmt: skip


@dataclass(frozen=True)
class PlanReport:
    """The best plan and the next ones, best first."""

    cluster: Cluster
    objective: str
    best: ParallelPlan
    others: tuple[ParallelPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report for `json.dumps`."""
        return {
            "devices": self.cluster.devices,
            "memory": self.cluster.memory,
            "objective": self.objective,
            "best": self.best.to_dict(),
            "others": [plan.to_dict() for plan in self.others],
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the report as text of at most this width."""
        plans = (self.best, *self.others)
        table = aligned([_TITLES, *map(_cells, plans)], left=(0,), width=width, least=(3, 1))
        return "\n".join([*table, "", *_lines(self.best, self.cluster)])


def name_of(plan: ParallelPlan) -> str:
    """Return the sizes of a plan: `dp = 2, tp = 8, 4 stages`."""
    parts = [f"{axis} = {ranks}" for axis, ranks in plan.mesh.items()]
    stages = len(plan.stages) + 1
    return ", ".join([*parts, *([f"{stages} stages"] if stages > 1 else [])]) or "one device"


def _cells(plan: ParallelPlan) -> tuple[str, ...]:
    cost = plan.estimate
    assert cost is not None
    return (
        name_of(plan),
        str(plan.devices),
        duration(cost.seconds),
        duration(cost.interval),
        human(round(cost.memory), "B"),
        human(round(cost.sent), "B"),
    )


def _lines(plan: ParallelPlan, cluster: Cluster) -> Iterator[str]:
    """Yield what the plan does, in words."""
    for axis in plan.axes:
        yield f"{axis.axis} = {axis.ranks}: {', '.join(kinds_of(axis)) or 'every rank computes the same'}"
        yield from (f"  {path}: {row if isinstance(row, str) else _table(row)}" for path, row in axis.rows.items())
        for noun, places in (("input", axis.inputs), ("output", axis.outputs)):
            yield from (f"  {noun} {name}: {place}" for name, place in places.items())
    if plan.stages:
        yield f"{len(plan.stages) + 1} stages; later ones begin with {', '.join(plan.stages)}"
    if plan.devices < cluster.devices:
        left = plural(cluster.devices - plan.devices, "more device")
        yield f"{left} would not make a run faster; {cluster.devices // plan.devices} such groups run side by side"


def _table(row: Any) -> str:
    return ", ".join(f"{name} {place}" for name, place in row.items())


def kinds_of(axis: Axis) -> list[str]:
    """Return the kinds of parallelism of an axis."""
    found = {_kind(row) for row in axis.rows.values()}
    left = [row.get("outputs") for row in axis.rows.values() if not isinstance(row, str)]
    places = (*left, *axis.inputs.values())
    if "shard(1)" in left or (not found and "shard(1)" in places):  # an input may have heads there
        found.add("sequence")
    if "shard(0)" in places:
        found.add("data")
    return [f"{kind} parallel" for kind in ("tensor", "expert", "sequence", "context", "data") if kind in found]


def _kind(row: Any) -> str:
    if isinstance(row, str):
        return _KINDS.get(row.partition("(")[0], "tensor")
    return "tensor" if "matrix" in row else ""
