"""Replacements: nodes of the second graph that replace nodes of the first, according to their `origins`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch_ir.analysis.graph_diff.node_diff import NodeDiff
from torch_ir.errors import listed
from torch_ir.ir import OpNode

SHOWN = 4  # names in a detail


@dataclass(frozen=True)
class Replacement:
    """Names of nodes of the first graph, and of those that replace them in the second."""

    first: tuple[str, ...]
    second: tuple[str, ...]


def replacements(rows: Iterable[NodeDiff]) -> list[Replacement]:
    """Return groups of differing nodes that share captured nodes, if a pass created some of them."""
    differing = [row for row in rows if row.status in ("added", "removed", "changed")]
    groups = _Groups()
    for row in differing:
        for made in filter(None, (row.first, row.second)):
            if replaces_others(made):
                groups.join(made.origins)
    members: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for row in differing:
        for side, node in enumerate((row.first, row.second)):
            for name in node.origins if node else ():
                if name in groups and node:
                    members.setdefault(groups.head(name), ({}, {}))[side][node.name] = None
    changed = {Replacement((row.first.name,), (row.second.name,)) for row in differing if row.first and row.second}
    found = (Replacement(tuple(first), tuple(second)) for first, second in members.values() if first and second)
    return [group for group in found if group not in changed]


def with_replacements(rows: Sequence[NodeDiff]) -> list[NodeDiff]:
    """Return the rows with details: which nodes an added one replaces, and what replaces a removed one."""
    captured = {name for row in rows if row.first for name in row.first.origins}
    replacing: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.second and row.status in ("added", "changed") and replaces_others(row.second):
            for name in row.second.origins:
                replacing.setdefault(name, {})[row.second.name] = None
    return [_detailed(row, captured, replacing) for row in rows]


def _detailed(row: NodeDiff, captured: set[str], replacing: dict[str, dict[str, None]]) -> NodeDiff:
    if row.status == "added" and replaces_others(row.node):
        names = [name for name in row.node.origins if name in captured]
        return replace(row, details=(f"replaces {listed(names, SHOWN)}",)) if names else row
    if row.status == "removed":
        names = list(dict.fromkeys(name for origin in row.node.origins for name in replacing.get(origin, ())))
        # nodes over weights alone come first in a program, and are least informative
        return replace(row, details=(f"now in {listed(names[::-1], SHOWN)}",)) if names else row
    return row


def replaces_others(node: OpNode) -> bool:
    """Whether a pass made this node from captured ones."""
    return node.origins != (node.name,)


class _Groups:
    """Disjoint sets of names (union-find)."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._above

    def head(self, name: str) -> str:
        while self._above.setdefault(name, name) != name:
            self._above[name] = name = self._above[self._above[name]]
        return name

    def join(self, names: Iterable[str]) -> None:
        first, *others = map(self.head, names)
        for other in others:
            self._above[self.head(other)] = self.head(first)
