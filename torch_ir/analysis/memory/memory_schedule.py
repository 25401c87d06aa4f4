"""Reorder nodes to reduce peak memory."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_ir.analysis.cost_model.node_costs import check_sizes
from torch_ir.analysis.dependencies.slices import names_of
from torch_ir.analysis.memory.live_tensors import Memory
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.regroup.functions import called_by


@dataclass(frozen=True)
class Schedule:
    """All nodes of a graph in a valid order, and the peak memory with it and before.

    `ir.nodes = list(schedule.nodes)` applies it.
    """

    nodes: tuple[OpNode, ...]
    peak: Dim
    before: Dim


def schedule(ir: IR, sizes: Mapping[str, int] | None = None) -> Schedule:
    """Return the best order found, at these sizes; open sizes count as 1024. The graph is not changed.

    Two greedy orders are tried: at every step the node that leaves the least memory allocated, or one that continues
    with the latest results. The program order is kept if neither needs less, or if a node writes in place. Nodes that
    draw random numbers or assert keep their order.
    """
    from torch_ir.ops.effects import writes_in_place  # imports torch

    check_sizes(ir, sizes or {})
    once, every = split_prologue(ir)
    memory = Memory(ir, every, sizes or {})
    orders = [every]
    if not any(map(writes_in_place, ir.all_nodes())):
        needed = _needed(ir, every)
        orders += [_greedy(every, needed, memory, deep) for deep in (False, True)]
    peaks = [memory.peak_of(order) for order in orders]
    best = min(range(len(orders)), key=lambda index: weight_of(peaks[index]))
    return Schedule((*once, *orders[best]), peaks[best], peaks[0])


def _needed(ir: IR, nodes: Sequence[OpNode]) -> dict[OpNode, set[OpNode]]:
    """Map each node to those that must run before it: producers of its inputs and sizes, and earlier effects."""
    from torch_ir.ops.effects import is_pure

    makers = {name: symbol.tensor.producer for name, symbol in ir.symbols.items() if symbol.tensor is not None}
    running = set(nodes)
    inside = {name: (_sizes_read_in(body), _has_effects(body)) for name, body in ir.functions.items()}
    last_effect: OpNode | None = None
    needed: dict[OpNode, set[OpNode]] = {}
    for node in nodes:
        bodies = [inside[name] for name in called_by([node])]
        read = set(names_of(node.attrs)).union(*(names for names, _ in bodies))
        before = {tensor.producer for tensor in node.inputs} | {makers.get(name) for name in read}
        if any(has_effect for _, has_effect in bodies) if bodies else not is_pure(node):
            before.add(last_effect)
            last_effect = node
        needed[node] = {other for other in before if other in running and other is not node and other is not None}
    return needed


def _sizes_read_in(body: IR) -> set[str]:
    """Return the symbols that a function, and those that it runs, take as numbers."""
    return {name for node in body.all_nodes() for name in names_of(node.attrs)}


def _has_effects(body: IR) -> bool:
    """Whether a node of a function, or of those that it runs, is not pure."""
    from torch_ir.ops.effects import is_pure

    inside = {name: _has_effects(inner) for name, inner in body.functions.items()}
    return any(
        any(inside[name] for name in called) if (called := called_by([node])) else not is_pure(node)
        for node in body.nodes
    )


def _greedy(nodes: Sequence[OpNode], needed: Mapping[OpNode, set[OpNode]], memory: Memory, deep: bool) -> list[OpNode]:
    """Schedule the ready node that leaves the least memory; with `deep`, prefer readers of the latest results."""
    places = {node: place for place, node in enumerate(nodes)}
    waiting = {node: set(before) for node, before in needed.items()}
    followers: dict[OpNode, list[OpNode]] = {}
    for node, before in needed.items():
        for other in before:
            followers.setdefault(other, []).append(node)
    held = _Held(nodes, memory)
    made_at: dict[TensorMeta, int] = {}
    order: list[OpNode] = []

    def preference(node: OpNode) -> tuple[float, ...]:
        left = held.left_by(node)
        age = -max((made_at.get(tensor, 0) for tensor in held.reads[node]), default=0)
        return (left > 0, age, left, places[node]) if deep else (left, age, places[node])

    ready = [preference(node) for node in nodes if not waiting[node]]
    heapq.heapify(ready)
    done: set[OpNode] = set()
    while ready:
        node = nodes[int(heapq.heappop(ready)[-1])]
        if node in done:  # entered again when it became the last reader of a tensor
            continue
        done.add(node)
        order.append(node)
        preferred = held.run(node)
        made_at.update(dict.fromkeys(memory.made[node], len(order)))
        for follower in followers.get(node, ()):
            waiting[follower].discard(node)
            if not waiting[follower]:
                preferred.append(follower)
        for one in preferred:
            if not waiting[one]:
                heapq.heappush(ready, preference(one))
    return order


class _Held:
    """Memory during a simulated run: the remaining readers of each tensor."""

    def __init__(self, nodes: Sequence[OpNode], memory: Memory) -> None:
        self.memory = memory
        made = [tensor for node in nodes for tensor in memory.made[node]]
        self.size = {tensor: weight_of(memory.size(tensor)) for tensor in made}
        self.reads = {node: memory.read_by(node) for node in nodes}
        self.readers: dict[TensorMeta, set[OpNode]] = {}
        for node in nodes:
            for tensor in self.reads[node]:
                self.readers.setdefault(tensor, set()).add(node)

    def left_by(self, node: OpNode) -> float:
        """Return the change in allocated memory when a node runs."""
        kept = self.memory.kept
        made = sum(self.size[tensor] for tensor in self.memory.made[node] if tensor in kept or self.readers.get(tensor))
        gone = [tensor for tensor in self.reads[node] if tensor not in kept and len(self.readers[tensor]) == 1]
        return made - sum(self.size.get(tensor, 0) for tensor in gone)

    def run(self, node: OpNode) -> list[OpNode]:
        """Run a node; return those that are now the last reader of a tensor, and so leave less memory than before."""
        preferred: list[OpNode] = []
        for tensor in self.reads[node]:
            left = self.readers[tensor]
            left.discard(node)
            if len(left) == 1 and tensor not in self.memory.kept:
                preferred += left
        return preferred
