"""Find the best plan for a model on a cluster: tensor, sequence, context, expert, data and pipeline parallelism.

Every factorisation of the number of devices into data-parallel ranks, ranks that share each layer, and pipeline stages
is considered; devices may be left over. How ranks share a layer is found by `graph_search`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from torch_ir.analysis import cost
from torch_ir.analysis.cost_model.node_costs import check_sizes
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import PlanError, ShardError, did_you_mean
from torch_ir.ir import IR
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.ir.regroup.separate_stacks import without_stacks
from torch_ir.ir.sizes.specialize import substitute
from torch_ir.ir.text.amounts import human, plural
from torch_ir.ops.effects import is_random, writes_in_place
from torch_ir.ops.schema import name_arguments
from torch_ir.pipeline import is_pipeline
from torch_ir.planning.candidates import Candidate, Divided, by_stages, candidate_of, measured
from torch_ir.planning.layouts import layouts
from torch_ir.planning.plan_file import Axis, ParallelPlan
from torch_ir.planning.plan_report import PlanReport
from torch_ir.planning.prices import Cluster
from torch_ir.sharding.rank_graph import is_function_call

OBJECTIVES = ("latency", "throughput")
_SHOWN = 4  # the best plan and the next ones
_MOST_CAPACITY = 100_000
_MOST_TRIES = 16  # candidates that are measured
_BATCH = "shard(0)"


@bounded
def find_plan(
    ir: IR,
    cluster: Cluster,
    *,
    objective: str = "latency",
    entry: str | None = None,
    sizes: Mapping[str, int] | None = None,
    capacity: float | None = None,
) -> PlanReport:
    """Return the best plan for a graph on a cluster, and the next best with other meshes or numbers of stages.

    `latency` is the time of one run, `throughput` the time between runs if all devices are busy. Of a file with several
    entry points, the first is planned, or `entry`; the plan applies to all. Sizes that are open and not in `sizes`
    count as 1024, and are not divided. Where tokens are sent to experts, a message of one rank to another has room for
    `capacity` times the mean number of rows; a run that needs more fails. By default, every routing has room. A
    PlanError says what is missing if nothing fits.
    """
    require_graph(ir, "find_plan")
    if not isinstance(cluster, Cluster):
        raise PlanError(f"expected a Cluster, not {cluster!r:.60}")
    if objective not in OBJECTIVES:
        raise PlanError(f"unknown objective {objective!r:.40}; expected one of {', '.join(OBJECTIVES)}")
    if capacity is not None and not 1 <= capacity <= _MOST_CAPACITY:
        raise PlanError(f"capacity must be from 1 to {_MOST_CAPACITY}, not {capacity!r:.40}")
    given = _entry_of(ir, entry)
    check_sizes(given, sizes or {})
    graph = _prepared(given)
    search = _Search(graph, cluster, objective, dict(sizes or {}), capacity)
    found = search.best()
    if not found:
        raise PlanError(_why_none(graph, cluster, search.least_memory()))
    return PlanReport(cluster, objective, found[0], tuple(found[1:]))


def _entry_of(ir: IR, entry: str | None) -> IR:
    if entry is None:
        return ir
    entries = further_entries(ir)
    if entry not in entries:
        known = did_you_mean(entry, entries) if entries else "; the graph has only one"
        raise PlanError(f"unknown entry point {entry!r:.60}{known}")
    return entries[entry]


def _prepared(ir: IR) -> IR:
    """Return a copy for the search: arguments by name, and equal layers as calls of one function."""
    if ir.mesh:
        raise PlanError("the graph is already sharded; plan the graph that was sharded")
    if is_pipeline(ir):
        raise PlanError("the graph is already a pipeline; plan the graph that was split")
    if "training" in ir.extensions:
        raise PlanError("a training step cannot be planned yet; plan the graph of its forward entry point")
    copy = without_stacks(ir).clone()
    for node in copy.all_nodes():
        name_arguments(node)
        if is_random(node) or writes_in_place(node):
            problem = "draws random numbers" if is_random(node) else "writes in place"
            raise PlanError(f"the graph cannot be divided: {node!r} {problem}")
    return copy.fold_blocks()


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


@dataclass
class _Search:
    """The search over meshes; those that cannot be among the best are not searched."""

    ir: IR
    cluster: Cluster
    objective: str
    sizes: Mapping[str, int]
    capacity: float | None

    def pairs(self) -> list[tuple[int, int]]:
        """Return the numbers of data-parallel ranks and of ranks that share a layer, those with most ranks first.

        One axis can also divide the batch alone, so two axes need at least two ranks for each layer.
        """
        ranks = _divisors(self.cluster.devices)
        found = [(1, each) for each in ranks]
        found += [(data, each) for each in ranks for data in _divisors(self.cluster.devices // each)[1:] if each > 1]
        return sorted(found, key=math.prod, reverse=True)

    def best(self) -> list[ParallelPlan]:
        """Return the best plans, best first."""
        found: list[Candidate] = []
        left = []
        once = self._whole_seconds()
        for pair in self.pairs():
            bound = once / (math.prod(pair) if self.objective == "latency" else self.cluster.devices)
            if len(found) >= _SHOWN and bound > sorted(each.value for each in found)[_SHOWN - 1]:
                left.append(pair)
            else:
                found += self._candidates(*pair)
        plans = self._accepted(found)
        return plans or self._accepted([each for pair in left for each in self._candidates(*pair)])

    def _whole_seconds(self) -> float:
        """Return the time of a run on one device: n ranks need at least an n-th of it."""
        return Clock(self.cluster.device).graph(cost(self.ir, self.sizes).per_run).seconds

    def _candidates(self, data: int, ranks: int) -> list[Candidate]:
        """Return the best candidate for each number of stages."""
        divided = self._divided(data, ranks, self.cluster)
        counts = _divisors(self.cluster.devices // (data * ranks))
        return list(by_stages(divided, counts, self.cluster, self.objective)) if divided else []

    def _divided(self, data: int, ranks: int, cluster: Cluster) -> Divided | None:
        """Return the graph on data-parallel ranks with its layouts; None if its batch cannot be divided."""
        axes = _batch_axis(self.ir, data)
        if axes is None:
            return None
        graph = ParallelPlan("", axes).shard(self.ir)
        most = cluster.memory * (cluster.devices // (data * ranks))
        dispatch = "all_to_all" if self.capacity is None else f"all_to_all({self.capacity:.6g})"
        front = layouts(graph, "tp", ranks, cluster, self.sizes, most, dispatch)
        return Divided(self.ir, axes, data, ranks, front, _between_layers(graph, self.sizes))

    def least_memory(self) -> float:
        """Return the memory of a rank in the smallest plan, whatever its time."""
        roomy = replace(self.cluster, memory=1 << 62)
        found: list[Candidate] = []
        for data, ranks in self.pairs():
            divided = self._divided(data, ranks, roomy)
            if divided is not None:
                smallest = replace(divided, front=divided.front[-1:])
                counts = _divisors(self.cluster.devices // (data * ranks))
                found += by_stages(smallest, counts, roomy, "throughput")
        if not found:
            raise PlanError("the graph cannot be divided, and does not run on one device either")
        least = min(found, key=lambda each: each.memory)
        ring = least.layout.with_rings()
        forms = [least, *([replace(least, layout=ring)] if ring else [])]
        estimates = [measured(each, roomy, self.sizes)[0].estimate for each in forms]
        return min(each.memory for each in estimates if each)

    def _accepted(self, candidates: Iterable[Candidate]) -> list[ParallelPlan]:
        """Return plans whose measured memory fits.

        A candidate that is too large is replaced by the next best one, and by the same one with attention in rings.
        """
        order = count()
        waiting = [(each.value, each.devices, next(order), each) for each in candidates]
        heapq.heapify(waiting)
        found: list[ParallelPlan] = []
        goal = (self.cluster, self.objective)
        for _ in range(_MOST_TRIES):
            if not waiting or len(found) == _SHOWN:
                break
            candidate = heapq.heappop(waiting)[-1]
            more = 0.0
            try:
                plan, more = measured(candidate, self.cluster, self.sizes)
            except ShardError:  # torch's shape rules, which the search does not ask, refuse it
                plan = None
            if plan and plan.estimate and plan.estimate.memory <= self.cluster.memory:
                found.append(plan)
                continue
            front = [each for each in candidate.divided.front if plan or each is not candidate.layout]
            # with less room, the same layout is cut elsewhere, or left out
            others = [candidate_of(replace(candidate.divided, front=front), candidate.count, *goal, more)]
            if plan and (ring := candidate.layout.with_rings()):
                others.append(candidate_of(replace(candidate.divided, front=[ring]), candidate.count, *goal))
            for other in others:
                if other is not None:
                    heapq.heappush(waiting, (other.value, other.devices, next(order), other))
        return found


def _why_none(ir: IR, cluster: Cluster, smallest: float) -> str:
    """Return why no plan fits, given the memory of the smallest plan."""
    weights = sum(weight_of(bytes_of(param)) for param in ir.params)
    fewest = math.ceil(weights / cluster.memory)
    devices = plural(cluster.devices, "device")
    given, needed = (human(round(amount), "B") for amount in (cluster.memory, smallest))
    message = f"no plan fits {devices} of {given}: the smallest needs {needed} on each"
    if fewest > cluster.devices:
        return f"{message}; the weights alone, {human(round(weights), 'B')}, need {fewest} devices of that size"
    return f"{message}; give more memory or more devices"


def _batch_axis(ir: IR, ranks: int) -> tuple[Axis, ...] | None:
    """Return the data-parallel axis: it divides the batch, the first size of the first input; None if it cannot."""
    if ranks == 1:
        return ()
    batch = next((tensor.shape[0] for tensor in ir.graph_inputs if tensor.shape), None)
    if not isinstance(batch, int) or batch % ranks:
        return None
    inputs, outputs = (
        {tensor.name: _BATCH for tensor in tensors if tensor.shape[:1] == (batch,)}
        for tensors in (ir.graph_inputs, ir.graph_outputs)
    )
    axis = Axis("dp", ranks, {}, inputs, outputs)
    try:
        ParallelPlan("", (axis,)).shard(ir)
    except ShardError:
        return None
    return (axis,)


def _between_layers(ir: IR, sizes: Mapping[str, int]) -> float:
    """Return the bytes of the widest first result of a layer, which one stage sends to the next."""
    results = [node.outputs[0] for node in ir.nodes if is_function_call(node) and node.outputs]
    found = results or [node.outputs[0] for node in ir.nodes if node.op_type.startswith("aten.linear")]
    return max((weight_of(substitute(bytes_of(each), sizes)) for each in found), default=0.0)
