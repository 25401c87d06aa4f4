"""Fused calls: several nodes become one call of a function whose body is exactly these nodes.

    before   silu = aten.silu.default(self=gate);  mul = aten.mul.Tensor(self=silu, other=up)
    after    mul = fused.silu_mul(gate=gate, up=up, function=@silu_mul)

Such a call runs, draws and inlines like any other; equal bodies share one function. It reads its arguments once and
writes its results once: intermediate results stay out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from torch_ir.analysis.dependencies.order import cyclic_sets, dependency_order
from torch_ir.analysis.memory.aliasing import memory_of
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.origins import common_origin
from torch_ir.ir.regroup.functions import FUSED, called_by, enclose, given_by, read_by
from torch_ir.ir.regroup.shared_functions import SharedFunctions
from torch_ir.ops.effects import is_pure
from torch_ir.rewrite.change_log import current_journal

_ROUNDS = 16  # in which groups are dissolved one by one


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that become one call: its name, the names of its inputs, and its attributes."""

    name: str
    nodes: Sequence[OpNode]
    reads: Mapping[str, TensorMeta] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> list[tuple[str, TensorMeta]]:
        """Return the tensors that the nodes read, in the order of `reads`; unnamed ones follow as `input`."""
        read = dict.fromkeys(read_by(self.nodes))
        named = [(name, tensor) for name, tensor in self.reads.items() if tensor in read]
        known = {tensor for _, tensor in named}
        return [*named, *(("input", tensor) for tensor in read if tensor not in known)]


Find = Callable[[OpNode], Union[Group, None]]  # returns the group that ends with a node
Unit = Union[OpNode, Group]


def fuse(ir: IR, finders: Sequence[Find]) -> int:
    """Fuse the groups that the finders return, trying them in order at each node; return the number of calls made.

    Only the results of a group's last node may have other consumers.
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
    """Replace each of these disjoint groups by one call; return how many."""
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
    """Decides which nodes may be fused: not those that run once, are in another group or have side effects."""

    def __init__(self, ir: IR) -> None:
        self.taken: set[OpNode] = set(split_prologue(ir)[0])
        self._sizes = {symbol.tensor for symbol in ir.symbols.values()}

    def admits(self, node: OpNode) -> bool:
        """Whether a node may be part of a group."""
        return node not in self.taken and is_pure(node) and self._sizes.isdisjoint(node.outputs)

    def objection(self, group: Group, *, only_result: bool) -> str:
        """Return why a group cannot become a call, or ""."""
        for node in group.nodes:
            if not self.admits(node):
                return f"{node.name!r} is in another group, runs only once, or has side effects"
        given = given_by(group.nodes)
        if not given:
            return "its results are unused"
        if only_result and (others := [made for made in given if made.producer is not group.nodes[-1]]):
            return f"{others[0].name!r} is read elsewhere too"
        inside = {made for node in group.nodes for made in node.outputs}
        if any((memory := memory_of(made)) is None or not memory <= inside for made in given):
            return "a result shares memory with an input of the call"
        return ""


def _shared(ir: IR) -> SharedFunctions:
    """Return the function table of the graph, with the bodies of existing fused calls bound to it."""
    calls = [node for node in ir.nodes if node.is_call and node.op_type.startswith(FUSED)]
    bodies = {name: ir.functions.pop(name) for name in called_by(calls)}
    shared = SharedFunctions(ir)
    for call in calls:
        shared.bind(call, bodies[call.attrs["function"]], str(call.attrs["function"]))
    return shared


def _ordered(ir: IR, groups: Sequence[Group]) -> list[Unit]:
    """Return nodes and groups in a valid order close to the original; groups that cause cycles are dissolved.

    One group of each set of units that depend on each other at a time, and after some rounds all of them.
    """
    left, attempts = dict.fromkeys(groups), 0
    while True:
        group_of = {node: group for group in left for node in group.nodes}
        order, knots = _sorted(ir, {node: group_of.get(node, node) for node in ir.nodes})
        if not knots:
            return order
        for knot in knots:
            circular = [unit for unit in knot if isinstance(unit, Group)]  # single nodes form no cycle
            for group in circular[: 1 if attempts < _ROUNDS else None]:
                del left[group]
                why = "it would depend on its own results"
                current_journal().decline(f"{FUSED}{group.name}", group.nodes[-1].name, why)
        attempts += 1


def _sorted(ir: IR, unit_of: Mapping[OpNode, Unit]) -> tuple[list[Unit], list[list[Unit]]]:
    """Sort units topologically, by the position of their last node; return the order, and sets of circular units."""
    at = {unit_of[node]: number for number, node in enumerate(ir.nodes)}
    before: dict[Unit, list[Unit]] = {unit: [] for unit in sorted(at, key=at.__getitem__)}
    for node, other in _edges(ir):
        if unit_of[other] is not unit_of[node]:
            before[unit_of[node]].append(unit_of[other])
    order, blocked = dependency_order(before)
    return order, [sorted(units, key=at.__getitem__) for units in cyclic_sets(blocked)]


def _edges(ir: IR) -> Iterator[tuple[OpNode, OpNode]]:
    """Yield (node, predecessor) pairs: producers, the previous side effect, the last node defining a symbolic size."""
    sizes = {symbol.tensor for symbol in ir.symbols.values()}
    effect = size_source = None
    for node in ir.nodes:
        before: Iterable[OpNode | None] = [tensor.producer for tensor in node.inputs]
        for other in (*before, size_source, None if is_pure(node) else effect):
            if other is not None:
                yield node, other
        effect = effect if is_pure(node) else node
        size_source = size_source if sizes.isdisjoint(node.outputs) else node
