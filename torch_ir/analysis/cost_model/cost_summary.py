"""Summary of a graph's cost in a few numbers, and comparison of two such summaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch_ir.analysis.cost_model.node_costs import Cost, cost
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.memory.live_tensors import liveness
from torch_ir.analysis.shapes.size_polynomials import product, total, weight_of
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.ir.text.amounts import human

TITLES = {
    "nodes": ("nodes per run", ""),
    "once": ("nodes computed once", ""),
    "macs": ("MACs", ""),
    "flops": ("FLOPs", ""),
    "bytes": ("bytes moved", "B"),
    "peak": ("peak memory", "B"),
    "params": ("parameters read", ""),
    "weights": ("weights", "B"),
}


@dataclass(frozen=True)
class Measure:
    """Cost of one run of a graph; `once` counts the nodes computed only when weights are bound.

    `peak` is the peak memory of activations, `weights` the bytes of all weights and constants.
    """

    nodes: int
    once: int
    macs: Dim
    flops: Dim
    bytes: Dim
    peak: Dim
    params: Dim
    weights: Dim


def measured(ir: IR, costs: Cost, sizes: Mapping[str, int] | None = None) -> Measure:
    """Return the measure of a graph with these costs at these sizes; functions that it does not call are excluded."""
    return Measure(
        len(costs.per_run.nodes),
        len(costs.once.nodes),
        costs.per_run.macs,
        costs.per_run.flops,
        costs.per_run.bytes,
        liveness(ir, sizes).peak,
        total(product(*param.shape) for param in ir.params if _is_read(param)),
        total(map(bytes_of, ir.params)),
    )


def measured_in_all(ir: IR) -> Measure:
    """Return the measure of a file: all of its entry points, over one set of weights."""
    parts = [measured(graph, cost(graph)) for graph in entry_points(ir).values()]
    return Measure(
        sum(part.nodes for part in parts),
        sum(part.once for part in parts),
        total(part.macs for part in parts),
        total(part.flops for part in parts),
        total(part.bytes for part in parts),
        max((part.peak for part in parts), key=weight_of),
        parts[0].params,
        parts[0].weights,
    )


def entry_points(ir: IR) -> dict[str, IR]:
    """Return the graph itself, under an empty name, and the functions that no node references."""
    return {"": ir, **further_entries(ir)}


def side_by_side(before: Measure, after: Measure, names: Collection[str] = tuple(TITLES)) -> Iterator[list[str]]:
    """Yield the rows of the table, titles first."""
    yield ["", "before", "after", "change"]
    for name in names:
        title, unit = TITLES[name]
        old, new = getattr(before, name), getattr(after, name)
        yield [title, human(old, unit), human(new, unit), change(old, new)]


def change(old: Dim, new: Dim) -> str:
    """Return the change in per cent; open sizes count as 1024."""
    before, after = weight_of(old), weight_of(new)
    return "" if not before or before == after else f"{(after - before) / before:+.1%}"


def _is_read(param: TensorMeta) -> bool:
    """Whether this is a weight of the checkpoint, not a constant of the graph, and some node reads it."""
    return bool(param.consumers) and param.param is not None and param.param.in_state_dict
