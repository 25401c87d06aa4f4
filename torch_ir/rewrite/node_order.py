"""Program order of nodes while nodes are inserted: sorting some of them does not take a walk over all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from torch_ir.ir import OpNode

_BITS = 256  # of the gap between two labels: each insertion at one place halves it


class NodeOrder:
    """A list of nodes into which others are inserted.

    Every node has a label, an integer that grows along the list. A new one is labelled between its neighbours; when no
    integer is left there, all are labelled again.
    """

    def __init__(self, nodes: Sequence[OpNode]) -> None:
        self._first = list(nodes)
        self._inserted: dict[OpNode, list[OpNode]] = {}  # node -> those inserted right before it, in order

    def insert_before(self, node: OpNode, new: Sequence[OpNode]) -> None:
        """Insert nodes right before a node, after all that were inserted there already."""
        self._inserted.setdefault(node, []).extend(new)
        if "_labels" in self.__dict__:
            self._label(node, new)

    def sorted(self, nodes: Iterable[OpNode]) -> list[OpNode]:
        """Return those of these nodes that are in the list, in its order."""
        return sorted([node for node in nodes if node in self._labels], key=self._labels.__getitem__)

    def nodes(self) -> list[OpNode]:
        """Return the whole list."""
        found: list[OpNode] = []
        left = self._first[::-1]
        opened: set[OpNode] = set()
        while left:
            node = left[-1]
            if node in opened or node not in self._inserted:
                found.append(left.pop())
            else:
                opened.add(node)
                left += reversed(self._inserted[node])
        return found

    @cached_property
    def _labels(self) -> dict[OpNode, int]:
        nodes = self.nodes()
        self._previous = dict(zip(nodes[1:], nodes[:-1], strict=True))
        return {node: (place + 1) << _BITS for place, node in enumerate(nodes)}

    def _label(self, node: OpNode, new: Sequence[OpNode]) -> None:
        before = self._previous.get(node)
        low = 0 if before is None else self._labels[before]
        step = (self._labels[node] - low) // (len(new) + 1)
        if not step:
            del self._labels
            return
        for place, one in enumerate(new):
            self._labels[one] = low + step * (place + 1)
            if before is not None:
                self._previous[one] = before
            before = one
        if before is not None:
            self._previous[node] = before
