"""Topological order of nodes, or of anything else that depends on each other."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from torch_ir.errors import GraphError
from torch_ir.ir import OpNode

_SHOWN = 8  # nodes of a cycle in an error
_Item = TypeVar("_Item", bound=Hashable)


def topological_order(nodes: Iterable[OpNode]) -> list[OpNode]:
    """Sort nodes topologically, as close to the given order as possible."""
    given = dict.fromkeys(nodes)
    producers = {
        node: [t.producer for t in node.inputs if t.producer is not None and t.producer in given] for node in given
    }
    order, blocked = dependency_order(producers)
    if blocked:
        raise GraphError(f"the nodes form a cycle: {_cycle_text(producers)}")
    return order


def dependency_order(before: Mapping[_Item, Iterable[_Item]]) -> tuple[list[_Item], dict[_Item, list[_Item]]]:
    """Sort items so that each follows those before it, earliest given position first.

    Return the order, and the items of cycles and those after them, each with its successors among them.
    """
    items = [*before]
    places = {item: place for place, item in enumerate(items)}
    successors: dict[_Item, list[_Item]] = {item: [] for item in items}
    waiting = dict.fromkeys(items, 0)
    for item, others in before.items():
        for other in dict.fromkeys(others):
            successors[other].append(item)
            waiting[item] += 1
    ready = [places[item] for item, count in waiting.items() if not count]  # ascending, so it is a heap
    order = []
    while ready:
        item = items[heapq.heappop(ready)]
        order.append(item)
        for successor in successors[item]:
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(ready, places[successor])
    blocked = {item: [after for after in successors[item] if waiting[after]] for item in items if waiting[item]}
    return order, blocked


def cyclic_sets(successors: Mapping[_Item, Sequence[_Item]]) -> Iterator[list[_Item]]:
    """Yield the sets of items that depend on each other: strongly connected components, by Tarjan's algorithm."""
    number: dict[_Item, int] = {}
    lowest: dict[_Item, int] = {}
    found: list[_Item] = []  # whose set is not complete
    pending: set[_Item] = set()  # the same
    for start in successors:
        path = [(start, iter(successors[start]))] if start not in number else []
        while path:
            item, others = path[-1]
            if item not in number:
                number[item] = lowest[item] = len(number)
                found.append(item)
                pending.add(item)
            for other in others:
                if other not in number:
                    path.append((other, iter(successors[other])))
                    break
                if other in pending:
                    lowest[item] = min(lowest[item], number[other])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[item])
                if lowest[item] == number[item]:
                    knot = [found.pop()]
                    while knot[-1] is not item:
                        knot.append(found.pop())
                    pending.difference_update(knot)
                    if len(knot) > 1:
                        yield knot


def _cycle_text(before: Mapping[OpNode, Iterable[OpNode]]) -> str:
    """Describe a cycle, starting with its first node: `'a' -> 'b' -> 'a'`."""
    cycle: Sequence[OpNode] = ()
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        cycle = error.args[1][1:]
    places = {node: place for place, node in enumerate(before)}
    first = min(range(len(cycle)), key=lambda at: places[cycle[at]])
    names = [repr(node.name) for node in (*cycle[first:], *cycle[: first + 1])]
    return " -> ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 2], "...", names[-1]])
