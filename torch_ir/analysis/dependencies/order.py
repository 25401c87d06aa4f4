"""Topological order of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from torch_ir.errors import GraphError
from torch_ir.ir import OpNode

_SHOWN = 8  # nodes of a cycle in an error


def topological_order(nodes: Iterable[OpNode]) -> list[OpNode]:
    """Sort nodes topologically, as close to the given order as possible."""
    given = list(dict.fromkeys(nodes))
    places = {node: place for place, node in enumerate(given)}
    missing = {node: {t.producer for t in node.inputs if t.producer in places} for node in given}
    readers: dict[OpNode | None, list[OpNode]] = {}
    for node, producers in missing.items():
        for producer in producers:
            readers.setdefault(producer, []).append(node)
    ready = [place for node, place in places.items() if not missing[node]]  # sorted, so already a heap
    order = []
    while ready:
        node = given[heapq.heappop(ready)]
        order.append(node)
        del missing[node]
        for reader in readers.get(node, ()):
            missing[reader].discard(node)
            if not missing[reader]:
                heapq.heappush(ready, places[reader])
    if missing:
        raise GraphError(f"the nodes form a cycle: {_circle(missing)}")
    return order


def _circle(missing: Mapping[OpNode, Iterable[OpNode | None]]) -> str:
    """Describe a cycle among the remaining nodes: `'a' -> 'b' -> 'a'`."""
    path: list[OpNode] = []
    node = next(iter(missing))
    while node not in path:
        path.append(node)
        node = next(producer for producer in missing[node] if producer is not None)
    circle = [node, *path[: path.index(node) : -1], node]
    names = [repr(member.name) for member in circle]
    return " -> ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 2], "...", names[-1]])
