"""Fused calls: several nodes as one call of a body, which is made of exactly these nodes.

    before   silu = aten.silu.default(self=gate);  mul = aten.mul.Tensor(self=silu, other=up)
    after    mul = fused.silu_mul(gate=gate, up=up, function=@silu_mul)

Such a call runs, draws and is put inline again like any other; equal bodies are one function. It reads its arguments
once and writes its results once, which is what fusing buys.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from torch_ir.analysis.memory.aliasing import memory_of
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.origins import common_origin
from torch_ir.ir.regroup.functions import FUSED, called_by, enclose, given_by, read_by
from torch_ir.ir.regroup.shared_functions import SharedFunctions
from torch_ir.ops.effects import is_pure
from torch_ir.rewrite.change_log import current_journal


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that become one call: what it is called, what it calls the tensors it reads, and what it says of itself."""

    name: str
    nodes: Sequence[OpNode]
    reads: Mapping[str, TensorMeta] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> list[tuple[str, TensorMeta]]:
        """What the nodes read, each under its name, in the order of the names; what has none is an `input`."""
        read = dict.fromkeys(read_by(self.nodes))
        named = [(name, tensor) for name, tensor in self.reads.items() if tensor in read]
        known = {tensor for _, tensor in named}
        return [*named, *(("input", tensor) for tensor in read if tensor not in known)]


Find = Callable[[OpNode], Union[Group, None]]  # the group that ends with a node
Unit = Union[OpNode, Group]


def fuse(ir: IR, finders: Sequence[Find]) -> int:
    """Fuse the groups that these find, the first that finds one at each node; return how many calls were made.

    Only what the last node makes may be read elsewhere.
    """
    limits = Limits(ir)
    entries = current_journal()
    groups: list[Group] = []
    for node in reversed(ir.nodes):
        for find in finders:
            group = None if node in limits.taken or not node.outputs else find(node)
            if group is None:
                continue
            why = limits.objection(group, only_result=True)
            if not why:
                limits.taken.update(group.nodes)
                groups.append(group)
                break
            entries.decline(f"{FUSED}{group.name}", node.name, why)
    return fuse_groups(ir, groups[::-1])


def fuse_groups(ir: IR, groups: Sequence[Group]) -> int:
    """Put one call in the place of each of these groups, which share no node, in one sweep; return how many."""
    if not groups:
        return 0
    entries = current_journal()
    place = {node: number for number, node in enumerate(ir.nodes)}
    order, shared = _ordered(ir, groups), _shared(ir)
    nodes: list[OpNode] = []
    count = 0
    for unit in order:
        if isinstance(unit, OpNode):
            nodes.append(unit)
            continue
        inside = sorted(unit.nodes, key=place.__getitem__)
        call, body = enclose(ir, inside, unit.arguments(), common_origin(inside))
        call.name, call.op_type = inside[-1].name, f"{FUSED}{unit.name}"
        call.attrs.update(unit.attrs)
        shared.bind(call, body, unit.name)
        nodes.append(call)
        entries.changed(call.op_type, call.name, call.origins)
        count += 1
    ir.nodes = nodes
    return count


class Limits:
    """What no group may hold: nodes that run once, that are taken already, that do more than compute."""

    def __init__(self, ir: IR) -> None:
        self.taken: set[OpNode] = set(split_prologue(ir)[0])
        self._sizes = {symbol.tensor for symbol in ir.symbols.values()}

    def admits(self, node: OpNode) -> bool:
        """Whether a node may be part of a group."""
        return node not in self.taken and is_pure(node) and self._sizes.isdisjoint(node.outputs)

    def objection(self, group: Group, *, only_result: bool) -> str:
        """Why a group cannot become a call, or nothing."""
        for node in group.nodes:
            if not self.admits(node):
                return f"{node.name!r} is part of something else, runs once for all, or does more than compute"
        given = given_by(group.nodes)
        if not given:
            return "nobody reads what it makes"
        if only_result and (others := [made for made in given if made.producer is not group.nodes[-1]]):
            return f"{others[0].name!r} is read elsewhere too"
        inside = {made for node in group.nodes for made in node.outputs}
        if any((memory := memory_of(made)) is None or not memory <= inside for made in given):
            return "a result shares memory with what the call reads"
        return ""


def _shared(ir: IR) -> SharedFunctions:
    """The functions of the graph, with the bodies that fused calls have already."""
    calls = [node for node in ir.nodes if node.is_call and node.op_type.startswith(FUSED)]
    bodies = {name: ir.functions.pop(name) for name in called_by(calls)}
    shared = SharedFunctions(ir)
    for call in calls:
        shared.bind(call, bodies[call.attrs["function"]], str(call.attrs["function"]))
    return shared


def _ordered(ir: IR, groups: Sequence[Group]) -> list[Unit]:
    """Nodes and groups so that each comes after all it needs, else as they were; groups in the way are opened again."""
    left = list(groups)
    while True:
        group_of = {node: group for group in left for node in group.nodes}
        order, circular = _sorted(ir, {node: group_of.get(node, node) for node in ir.nodes})
        if circular is None:
            return order
        left.remove(circular)
        why = "it needs what is made of its own results"
        current_journal().decline(f"{FUSED}{circular.name}", circular.nodes[-1].name, why)


def _sorted(ir: IR, unit_of: Mapping[OpNode, Unit]) -> tuple[list[Unit], Group | None]:
    """The order, each as early as those before it allow, or a group that needs itself."""
    at = {unit_of[node]: number for number, node in enumerate(ir.nodes)}
    unit_at = {number: unit for unit, number in at.items()}
    edges = {(unit_of[before], unit_of[node]): None for node, before in _edges(ir)}
    feeds: dict[Unit, list[Unit]] = {unit: [] for unit in at}
    waiting = dict.fromkeys(at, 0)
    for before, unit in edges:
        if before is not unit:
            feeds[before].append(unit)
            waiting[unit] += 1
    ready = [at[unit] for unit, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(unit_at[heapq.heappop(ready)])
        for reader in feeds[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, at[reader])
    blocked = {unit: before for before, unit in edges if waiting[before] and before is not unit}
    return order, _circular(blocked) if blocked else None


def _circular(blocked: Mapping[Unit, Unit]) -> Group:
    """A group on a way that comes back to where it was; single nodes alone never make one."""
    way = list(itertools.islice(blocked, 1))
    while blocked[way[-1]] not in way:
        way.append(blocked[way[-1]])
    circle = way[way.index(blocked[way[-1]]) :]
    return next(unit for unit in circle if isinstance(unit, Group))


def _edges(ir: IR) -> Iterator[tuple[OpNode, OpNode]]:
    """What must come before what: who makes what is read, the effect before an effect, who gives a size."""
    sizes = {symbol.tensor for symbol in ir.symbols.values()}
    effect = giver = None
    for node in ir.nodes:
        before: Iterable[OpNode | None] = [tensor.producer for tensor in node.inputs]
        for other in (*before, giver, None if is_pure(node) else effect):
            if other is not None:
                yield node, other
        effect = effect if is_pure(node) else node
        giver = giver if sizes.isdisjoint(node.outputs) else node
