"""Generate names that are not taken yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR


class FreeNames:
    """A set of taken names; every name returned by `free` is added to it."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self._numbers: Counter[str] = Counter()

    def free(self, wanted: str) -> str:
        """Return the name itself if it is free, else the next one of its series: `slice_7` after `slice_6`."""
        name, kind, number = wanted, *wanted.rpartition("_")[::2]
        kind = kind if kind and number.isdigit() else wanted
        while name in self.taken:
            self._numbers[kind] += 1
            name = f"{kind}_{self._numbers[kind]}"
        self.taken.add(name)
        return name


class Names(set[str]):
    """A set of taken names for `fresh`, with the numbers already tried: many equal names take linear time."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        super().__init__(taken)
        self.tried: dict[str, int] = {}


def taken_names(ir: IR) -> Names:
    """Return the names of the tensors and nodes of a graph, for `fresh` or `FreeNames`."""
    return Names({tensor.name for tensor in ir.tensors()} | {node.name for node in ir.nodes})


def lengthened(name: str, taken: set[str]) -> str:
    """Return the name, with as many `_` behind it as make it free, and add it to `taken`."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def fresh(name: str, taken: set[str]) -> str:
    """Return the name, with the first free number if it is taken, and add it to `taken`, which must only grow."""
    found = name
    if name in taken:
        tried = taken.tried if isinstance(taken, Names) else {}
        number = tried.get(name, 1)
        while (found := f"{name}_{number}") in taken:
            number += 1
        tried[name] = number + 1
    taken.add(found)
    return found
