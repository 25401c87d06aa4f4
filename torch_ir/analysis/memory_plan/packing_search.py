"""Branch-and-bound search for offsets within a capacity.

Buffers are placed from the bottom up. The next one is always at the lowest offset that any remaining buffer can have,
so that nothing can come below it, and each decision has two sides: the buffer is there, or it is higher. A buffer that
is higher rests on another one that is not placed yet. Every packing can be pushed down into such a form, so if the
search ends without a result, there is none. From the decisions follows a lowest offset for each remaining buffer, and a
branch is cut off where the buffers of a section, none below its lowest offset, exceed the capacity.

Where the remaining buffers fall into groups that are not needed at the same time, each group is searched separately.
The order from the bottom up, the bound for sections and the groups follow M. D. Moffitt, "MiniMalloc: A Lightweight
Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023. The choice of the next buffer is that of
constraint solvers: it belongs to the section with the fewest candidates, and sections that were exceeded often count
more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

from torch_ir.analysis.memory_plan.buffers import Buffer, Sections, overlapping
from torch_ir.ir.checks.limits import Budget


class OutOfStepsError(Exception):
    """The search was not finished in the given number of steps."""


class _Part(NamedTuple):
    """A group of buffers that are to be placed.

    `support` is the top of what is placed below each buffer; those in `is_higher` are not at that offset.
    """

    items: list[int]
    support: list[int]
    is_higher: list[bool]


class PackingProblem:
    """The buffers of one or more searches.

    `weights` say how often there was no room in a section: each search adds to them, and the next one reads them.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        sections = Sections(buffers)
        self.sizes = [buffer.size for buffer in buffers]
        self.spans = sections.spans
        self.load = sections.load
        self.overlaps = overlapping(buffers)
        self.weights = [1.0] * len(self.load)


class PackingSearch:
    """One search: of the buffers that compete for a place, the one of lowest `rank` is tried first."""

    def __init__(self, problem: PackingProblem, capacity: int, rank: Sequence[int], steps: int) -> None:
        self.offsets = [0] * len(problem.sizes)
        self._problem = problem
        self._sizes = problem.sizes
        self._spans = problem.spans
        self._capacity = capacity
        self._rank = rank
        self._steps = Budget(steps)

    def run(self) -> bool:
        """Return whether the buffers fit; raise OutOfStepsError if that is not known after `steps` decisions."""
        if max(self._problem.load, default=0) > self._capacity:
            return False
        support, is_higher = [0] * len(self._sizes), [False] * len(self._sizes)
        sized = (item for item, size in enumerate(self._sizes) if size)
        return all(self._is_solved(_Part(group, support, is_higher)) for group in self._groups(sized))

    def _is_solved(self, part: _Part) -> bool:
        """Run `_fits` with an explicit stack, which may be deeper than Python's."""
        stack = [self._fits(part)]
        found = None
        while stack:
            try:
                stack.append(self._fits(stack[-1].send(found)))
                found = None
            except StopIteration as end:
                stack.pop()
                found = end.value
        return bool(found)

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
        return sorted(groups, key=len)

    def _fits(self, part: _Part) -> Generator[_Part, bool | None, bool]:
        """Return whether a part fits; yield the parts for which that must be known first."""
        items, support, is_higher = part
        while True:
            if not self._steps.take():
                raise OutOfStepsError
            lowest = self._lowest_offsets(part)
            if not self._has_room(items, lowest):
                return False
            item = self._next_item(items, lowest)
            self.offsets[item] = lowest[item]
            failed = None
            for group in self._groups(other for other in items if other != item):
                if not (yield self._after(group, support, is_higher, item)):
                    failed = group
                    break
            if failed is None:
                return True
            if not set(failed) & set(self._problem.overlaps[item]):  # no other offset of this buffer would help those
                return False
            for other in items:  # buffers that are equal to this one would only change places with it
                if self._spans[other] == self._spans[item] and self._sizes[other] == self._sizes[item]:
                    is_higher[other] = True

    def _after(self, group: list[int], support: list[int], is_higher: list[bool], item: int) -> _Part:
        """Return a group as it is after a buffer has been placed."""
        support, is_higher = support.copy(), is_higher.copy()
        top = self.offsets[item] + self._sizes[item]
        for other in self._problem.overlaps[item]:
            if support[other] < top:
                support[other], is_higher[other] = top, False
        return _Part(group, support, is_higher)

    def _lowest_offsets(self, part: _Part) -> dict[int, int]:
        """Return the lowest offset of each buffer: its support, or the top of the lowest other that it can rest on."""
        items, support, is_higher = part
        lowest = {item: support[item] for item in items if not is_higher[item]}
        tops = {item: low + self._sizes[item] for item, low in lowest.items()}
        waiting = {}
        for item in items:
            if is_higher[item]:
                below = [tops[other] for other in self._problem.overlaps[item] if other in tops]
                waiting[item] = max(support[item] + 1, min(below, default=self._capacity))
        while waiting:  # from the lowest up: those above may rest on them
            item = min(waiting, key=waiting.__getitem__)
            lowest[item] = low = waiting.pop(item)
            for other in self._problem.overlaps[item] if waiting else ():
                if other in waiting:
                    waiting[other] = min(waiting[other], max(support[other] + 1, low + self._sizes[item]))
        return lowest

    def _has_room(self, items: Sequence[int], lowest: dict[int, int]) -> bool:
        """Return whether each section can hold its buffers, however they are stacked; count sections that cannot."""
        weights = self._problem.weights
        stacked = [0] * len(weights)
        for item in sorted(items, key=lowest.__getitem__, reverse=True):
            room = self._capacity - lowest[item]
            size = self._sizes[item]
            for section in range(*self._spans[item]):
                stacked[section] = total = stacked[section] + size
                if total > room:
                    weights[section] += 1
                    return False
        return True

    def _next_item(self, items: Sequence[int], lowest: dict[int, int]) -> int:
        """Return a buffer that can be at the bottom, in the section with the fewest of them for its weight."""
        bottom = min(lowest.values())
        candidates = [item for item in items if lowest[item] == bottom]
        choices: dict[int, int] = {}
        for item in candidates:
            for section in range(*self._spans[item]):
                choices[section] = choices.get(section, 0) + 1
        weights = self._problem.weights
        section = min(choices, key=lambda section: (choices[section] / weights[section], section))
        return min(
            (item for item in candidates if self._spans[item][0] <= section < self._spans[item][1]),
            key=self._rank.__getitem__,
        )
