"""Topological order of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

from torch_ir.errors import GraphError
from torch_ir.ir import OpNode

_SHOWN = 8  # nodes of a cycle in an error


def topological_order(nodes: Iterable[OpNode]) -> list[OpNode]:
    """Sort nodes topologically, as close to the given order as possible."""
    given = list(dict.fromkeys(nodes))
    places = {node: place for place, node in enumerate(given)}
    producers = {node: {t.producer for t in node.inputs if t.producer in places} for node in given}
    sorter = TopologicalSorter(producers)
    try:
        sorter.prepare()
    except CycleError as error:
        raise GraphError(f"the nodes form a cycle: {_cycle_text(error.args[1][1:], places)}") from None
    ready: list[int] = []
    order: list[OpNode] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, places[node])
        order.append(given[heapq.heappop(ready)])
        sorter.done(order[-1])
    return order


def _cycle_text(cycle: Sequence[OpNode], places: dict[OpNode, int]) -> str:
    """Describe a cycle, starting with its first node: `'a' -> 'b' -> 'a'`."""
    first = min(range(len(cycle)), key=lambda at: places[cycle[at]])
    names = [repr(node.name) for node in (*cycle[first:], *cycle[: first + 1])]
    return " -> ".join(names if len(names) <= _SHOWN else [*names[: _SHOWN - 2], "...", names[-1]])
