"""Candidates of a search: the best layout for one mesh and number of stages, first estimated, then measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_ir.analysis import cost, liveness
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.shapes.size_polynomials import total, weight_of
from torch_ir.ir import IR
from torch_ir.planning.layouts import Layout
from torch_ir.planning.plan_file import Axis, Estimate, ParallelPlan
from torch_ir.planning.prices import Cluster
from torch_ir.planning.stage_choice import Stages, stages_of
from torch_ir.planning.style_options import Row
from torch_ir.sharding.sharding_plan import paths_of

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Divided:
    """A graph on some data-parallel ranks, and its layouts on the ranks that share a layer, fastest first."""

    whole: IR
    axes: tuple[Axis, ...]  # of data parallelism
    data: int
    ranks: int
    front: Sequence[Layout]
    sent: float  # bytes of the widest value between layers


@dataclass(frozen=True)
class Candidate:
    """A layout and its stages on a cluster; `value` is what the search minimises."""

    divided: Divided
    layout: Layout
    stages: Stages
    count: int
    value: float
    memory: float

    @property
    def devices(self) -> int:
        return self.divided.data * self.divided.ranks * self.count


def candidate_of(divided: Divided, count: int, cluster: Cluster, objective: str, more: float = 0.0) -> Candidate | None:
    """Return the best candidate with so many stages whose ranks also have room for `more` bytes; None if none fits."""
    stride = divided.data * divided.ranks
    found = []
    for layout in divided.front:
        received = divided.sent if count > 1 else 0.0
        room = cluster.memory - more - received
        cut = stages_of(layout.units, count, room, cluster.network, stride, divided.sent)
        if cut is not None:
            value = cut.latency if objective == "latency" else cut.interval / _copies(cluster, stride * count)
            found.append(Candidate(divided, layout, cut, count, value, max(cut.bytes) + more + received))
            if objective == "latency":
                break  # the others are slower
    return min(found, key=lambda each: each.value, default=None)


def plan_of_candidate(candidate: Candidate) -> ParallelPlan:
    """Return the plan of a candidate, with rows for all equal layers together."""
    layout, divided = candidate.layout, candidate.divided
    axes = list(divided.axes)
    if layout.ranks > 1:
        rows = shortened(layout.rows, paths_of(divided.whole))
        is_data = not rows and all(place == "shard(0)" for place in layout.inputs.values())
        name = "dp" if is_data and not axes else layout.axis
        axes.append(Axis(name, layout.ranks, rows, layout.inputs, layout.outputs))
    names = tuple(layout.units[start].name for start in candidate.stages.starts[1:])
    return ParallelPlan(divided.whole.model_name, tuple(axes), names)


def measured(candidate: Candidate, cluster: Cluster, sizes: Mapping[str, int]) -> tuple[ParallelPlan, float]:
    """Return the plan with its measured cost, and the bytes that its ranks need beside weights and inputs."""
    plan = plan_of_candidate(candidate)
    rank = plan.shard(candidate.divided.whole)
    memory = liveness(rank, sizes)
    more = weight_of(total([memory.once, memory.peak]))
    costs = cost(rank, sizes).per_run
    seconds = Clock(cluster.device, cluster.network, rank.mesh).graph(costs).seconds
    stages, passed = candidate.stages, candidate.divided.sent if candidate.count > 1 else 0.0
    estimate = Estimate(
        seconds + stages.hops,
        (stages.interval if candidate.count > 1 else seconds) / _copies(cluster, candidate.devices),
        max(stages.bytes) + more + passed,
        weight_of(costs.communication) + passed,
    )
    return replace(plan, estimate=estimate), more


def _copies(cluster: Cluster, devices: int) -> int:
    """Return how many copies of a plan run side by side."""
    return cluster.devices // devices


def by_stages(divided: Divided, counts: Sequence[int], cluster: Cluster, objective: str) -> Iterator[Candidate]:
    """Yield the best candidate for each number of stages."""
    for count in counts:
        candidate = candidate_of(divided, count, cluster, objective)
        if candidate is not None:
            yield candidate


def shortened(rows: Mapping[str, Row], known: Iterable[str]) -> dict[str, Row]:
    """Return the same plan with `layers.*.mlp` for rows of all layers that have such a path and the same style."""
    paths: dict[str, list[str]] = {}
    for path in known:
        paths.setdefault(_NUMBER.sub("*", path), []).append(path)
    common = {pattern: _common([rows.get(path) for path in same]) for pattern, same in paths.items()}
    found: dict[str, Row] = {}
    for path, row in rows.items():
        pattern = _NUMBER.sub("*", path)
        found[pattern if common.get(pattern, row) == row else path] = row
    return found


def _common(rows: list[Row | None]) -> Row | None:
    """Return the row that all are, or None."""
    return rows[0] if all(row == rows[0] for row in rows) else None
