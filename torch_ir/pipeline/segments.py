"""A graph as a sequence of segments: nodes that stay together, with their cost.

By default a segment is a layer: consecutive nodes in one element of a module list, or in one module outside such lists,
and the nodes of enclosing modules that follow. Nodes that are copied to every stage that reads them are in no segment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch_ir.analysis import Roofline, cost
from torch_ir.analysis.cost_model.node_costs import sized
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.memory.live_tensors import Memory
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.pipeline.copied_nodes import common_nodes, own_nodes
from torch_ir.pipeline.layer_of_node import by_layer, layer_of
from torch_ir.pipeline.stage_bounds import Load


@dataclass(frozen=True)
class Segment:
    """Consecutive nodes, their layer and their cost."""

    layer: str
    nodes: tuple[OpNode, ...]
    load: Load


def segments_of(ir: IR, *, depth: int, anywhere: bool, sizes: Mapping[str, int], device: Roofline) -> list[Segment]:
    """Return the segments of a graph; with `anywhere`, one per node, except for nodes that must stay together."""
    common = common_nodes(ir)
    line = own_nodes(ir)
    rows = [[node] for node in line] if anywhere else by_layer(line, depth)
    rows = _kept_together(ir, rows)
    loads = _Loads(ir, common, rows, sizes, device)
    return [Segment(layer_of(row[0], depth), tuple(row), loads.of(number)) for number, row in enumerate(rows)]


def _kept_together(ir: IR, rows: list[list[OpNode]]) -> list[list[OpNode]]:
    """Join the rows between the first read of a buffer and the computation of its new value, and rows without results.

    Otherwise another stage would read the buffer and never see the new value; and a stage of guards alone would
    return nothing.
    """
    number = {node: at for at, row in enumerate(rows) for node in row}
    joined: set[int] = set()  # rows to merge with the row before
    for target, value in ir.mutations:
        users = [*target.consumers, value.producer] if target.param is not None else []
        places = [number[node] for node in users if node in number]
        joined.update(range(min(places) + 1, max(places) + 1) if places else ())
    changed = {value for _, value in ir.mutations}
    for at, row in enumerate(rows):
        results = [tensor for node in row for tensor in node.outputs]
        is_used = any(number.get(reader) != at for tensor in results for reader in tensor.consumers)
        if not is_used and changed.isdisjoint(results) and len(rows) > 1:
            joined.add(min(at + 1, len(rows) - 1))
    found: list[list[OpNode]] = []
    for at, row in enumerate(rows):
        if at in joined:
            found[-1] += row
        else:
            found.append(list(row))
    return found


class _Loads:
    """Computes the cost of rows of nodes, including the weights they depend on."""

    def __init__(
        self,
        ir: IR,
        common: Sequence[OpNode],
        rows: Sequence[Sequence[OpNode]],
        sizes: Mapping[str, int],
        device: Roofline,
    ) -> None:
        self._rows = rows
        self._number = {node: at for at, row in enumerate(rows) for node in row}
        costs, clock = cost(ir, sizes), Clock(device)
        self._seconds = {row.node.name: clock.node(row, costs.functions).seconds for row in costs.nodes}
        self._bytes = {tensor.name: weight_of(bytes_of(tensor)) for tensor in sized(ir, sizes).tensors()}
        once, every = split_prologue(ir)
        memory = Memory(ir, every, sizes)
        self._kept = _kept_behind(ir, common, set(once), memory.owner)
        self._alive, self._inner = self._peaks(memory, every)
        self._crossing = self._crossings()

    def of(self, number: int) -> Load:
        row = self._rows[number]
        read = dict.fromkeys(tensor for node in row for tensor in node.inputs)
        kept = dict.fromkeys(owner for tensor in read for owner in self._kept.get(tensor, ()))
        sent = [tensor for tensor in read if tensor.producer and self._number.get(tensor.producer, number) < number]
        return Load(
            sum(self._seconds[node.name] for node in row),
            self._alive[number],
            self._inner[number],
            sum(self._bytes[tensor.name] for tensor in sent),
            {tensor: self._bytes[tensor.name] for tensor in kept},
            self._crossing[number],
        )

    def _peaks(self, memory: Memory, nodes: Sequence[OpNode]) -> tuple[list[float], list[float]]:
        """Return per row the peak bytes of its own results, and of those and the previous row's results."""
        own, inner = [0.0] * len(self._rows), [0.0] * len(self._rows)
        held = [0.0] * (len(self._rows) + 1)  # per row; the last is for nodes that every stage computes itself
        made: dict[TensorMeta, int] = {}
        for step in memory.steps(nodes):
            row = self._number.get(step.node, -1)
            for tensor, size in step.makes.items():
                made[tensor] = row
                held[row] += weight_of(size)
            if row >= 0:
                alive = held[row] + weight_of(step.inside)
                own[row] = max(own[row], alive)
                inner[row] = max(inner[row], alive + (held[row - 1] if row else 0.0))
            for tensor in step.dies:
                held[made[tensor]] -= weight_of(memory.size(tensor))
        return own, inner

    def _crossings(self) -> list[float]:
        """Return per row the bytes computed before it and read in it or later."""
        number, change = self._number, [0.0] * (len(self._rows) + 1)
        for node, made in number.items():
            for tensor in node.outputs:
                last = max((number[reader] for reader in tensor.consumers if reader in number), default=made)
                change[made + 1] += self._bytes[tensor.name]
                change[last + 1] -= self._bytes[tensor.name]
        total, found = 0.0, []
        for amount in change[:-1]:
            total += amount
            found.append(total)
        return found


def _kept_behind(
    ir: IR, common: Sequence[OpNode], once: Collection[OpNode], owner: Mapping[TensorMeta, TensorMeta]
) -> dict[TensorMeta, dict[TensorMeta, None]]:
    """Return what a stage must keep to read a tensor: model inputs, weights, and values computed from weights once."""
    behind = {tensor: {tensor: None} for tensor in (*ir.graph_inputs, *ir.params)}
    kept = dict(behind)
    for node in common:
        source = behind if node in once else kept
        found = dict.fromkeys(each for tensor in node.inputs for each in source[tensor])
        for tensor in node.outputs:
            is_new = node in once and owner[tensor].producer is not None
            behind[tensor], kept[tensor] = found, {**found, owner[tensor]: None} if is_new else found
    return kept
