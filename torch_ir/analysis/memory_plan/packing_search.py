"""Depth-first search for offsets within a capacity.

Buffers are placed from the bottom up, each on top of those below it, so that offsets never decrease. Every packing can
be pushed down into such a form, so if the search ends without a result, there is none. Branches are cut off where

- a section cannot hold what is still to be placed in it, above the lowest offset that any of that can get;
- another buffer would fit entirely below the chosen one;
- two buffers would only change places: equal ones, or those at the same offset.

Where the remaining buffers fall into groups that are not needed at the same time, each group is searched for itself.
This follows M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
ASPLOS 2023.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch_ir.analysis.memory_plan.buffers import Buffer, Sections
from torch_ir.ir.checks.limits import Budget

_NONE = -1


class OutOfStepsError(Exception):
    """The search was not finished in the given number of steps."""


class PackingSearch:
    """One search: `rank` says which of several buffers at the same offset is tried first.

    `blamed` counts for each buffer how often it was among those for which there was no room.
    """

    def __init__(self, buffers: Sequence[Buffer], capacity: int, rank: Sequence[int], steps: int) -> None:
        sections = Sections(buffers)
        self.offsets = [0] * len(buffers)
        self.blamed = [0] * len(buffers)
        self._sizes = [buffer.size for buffer in buffers]
        self._spans = sections.spans
        self._capacity = capacity
        self._rank = rank
        self._steps = Budget(steps)
        self._floor = [0] * len(sections.load)  # the top of what is placed, by section
        self._rest = sections.load  # the sizes of what is not, by section

    def run(self) -> bool:
        """Return whether the buffers fit; raise OutOfStepsError if that is not known after `steps` placements."""
        return all(self._place_all(group, 0, _NONE) for group in self._groups(range(len(self._sizes))))

    def _groups(self, items: Iterable[int]) -> list[list[int]]:
        """Return the buffers by time: those of one group overlap directly or through others; smallest group first."""
        groups: list[list[int]] = []
        reached = 0
        for item in sorted(items, key=self._spans.__getitem__):
            first, end = self._spans[item]
            if not groups or first >= reached:
                groups.append([])
            groups[-1].append(item)
            reached = max(reached, end)
        for group in groups:
            group.sort(key=self._rank.__getitem__)
        return sorted(groups, key=len)

    def _place_all(self, items: list[int], lowest: int, last: int) -> bool:
        """Place a group at `lowest` or above, after `last`; if that is impossible, leave everything as it was."""
        if not self._steps.take():
            raise OutOfStepsError
        spans, floor, rest = self._spans, self._floor, self._rest
        offset = {item: max(lowest, *floor[slice(*spans[item])]) for item in items}
        items = sorted(items, key=offset.__getitem__)  # the order of ranks is kept among equal offsets
        begin, end = min(spans[item][0] for item in items), max(spans[item][1] for item in items)
        if not self._has_room(items, offset, begin, end):
            return False
        before = floor[begin:end], rest[begin:end]
        for item in self._candidates(items, offset, lowest, last):
            self._place(item, offset[item])
            failed = self._failed_group(items, item, offset[item])
            if failed is None:
                return True
            floor[begin:end], rest[begin:end] = before
            if self._is_apart(failed, item):  # no other choice would help those
                return False
        return False

    def _has_room(self, items: Sequence[int], offset: dict[int, int], begin: int, end: int) -> bool:
        """Whether each section has room for what is left, above the lowest offset that any of it can get."""
        base = [0] * (end - begin)
        for item in reversed(items):
            first, after = self._spans[item]
            base[first - begin : after - begin] = [offset[item]] * (after - first)
        for section, (low, rest) in enumerate(zip(base, self._rest[begin:end], strict=True), begin):
            if low + rest > self._capacity:
                for item in items:
                    self.blamed[item] += self._spans[item][0] <= section < self._spans[item][1]
                return False
        return True

    def _candidates(self, items: Sequence[int], offset: dict[int, int], lowest: int, last: int) -> Iterator[int]:
        """Yield the buffers that may be the next: not above another that fits below, and not in two orders."""
        ceiling = min(offset[item] + self._sizes[item] for item in items)
        seen = set()
        for item in items:
            if offset[item] >= ceiling:
                return
            is_swapped = last != _NONE and offset[item] == lowest and self._rank[item] < self._rank[last]
            kind = (self._spans[item], self._sizes[item])
            if not is_swapped and kind not in seen:
                seen.add(kind)
                yield item

    def _place(self, item: int, offset: int) -> None:
        first, end = self._spans[item]
        size = self._sizes[item]
        self.offsets[item] = offset
        self._floor[first:end] = [offset + size] * (end - first)
        self._rest[first:end] = [rest - size for rest in self._rest[first:end]]

    def _failed_group(self, items: Iterable[int], placed: int, offset: int) -> list[int] | None:
        """Place all other buffers; return the first group for which that is impossible."""
        for group in self._groups(item for item in items if item != placed):
            last = _NONE if self._is_apart(group, placed) else placed
            if not self._place_all(group, offset, last):
                return group
        return None

    def _is_apart(self, group: Iterable[int], item: int) -> bool:
        """Whether no buffer of a group is needed at the same time as this one."""
        first, end = self._spans[item]
        return all(end <= self._spans[other][0] or self._spans[other][1] <= first for other in group)
