"""Depth-first search for offsets within a capacity.

Buffers are placed from the bottom up, each on top of those below it, so that offsets never decrease. Every packing can
be pushed down into such a form, so if the search ends without a result, there is none. Branches are cut off where

- a section cannot hold what is still to be placed in it, above the lowest offset that any of that can get;
- another buffer would fit entirely below the chosen one;
- two equal buffers would only change places.

The next buffer is the one after which the fullest section is least full. Where the remaining buffers fall into groups
that are not needed at the same time, each group is searched for itself. All but the choice of the next buffer follows
M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch_ir.analysis.memory_plan.buffers import Buffer, Sections
from torch_ir.ir.checks.limits import Budget

_SHARPNESS = 20  # how much more the fullest sections count


class OutOfStepsError(Exception):
    """The search was not finished in the given number of steps."""


class _State(NamedTuple):
    """By section: the top of what is placed, and the sizes of what is not."""

    floor: list[int]
    rest: list[int]


class _Part(NamedTuple):
    """A group of buffers that are to be placed at `lowest` or above."""

    items: list[int]
    state: _State
    lowest: int


class _Choice(NamedTuple):
    """A buffer as the next one, what follows, and how full sections are then at least."""

    fullest: int
    fullness: float
    item: int
    offset: int
    state: _State


class PackingSearch:
    """One search: of buffers at the same offset, those of lower `rank` come first; the first `looked_at` are compared.

    `blamed` counts for each buffer how often it was among those for which there was no room.
    """

    def __init__(
        self, buffers: Sequence[Buffer], capacity: int, rank: Sequence[int], steps: int, looked_at: int = 8
    ) -> None:
        sections = Sections(buffers)
        self.offsets = [0] * len(buffers)
        self.blamed = [0] * len(buffers)
        self._sizes = [buffer.size for buffer in buffers]
        self._spans = sections.spans
        self._capacity = capacity
        self._rank = rank
        self._steps = Budget(steps)
        self._looked_at = looked_at
        self._start = _State([0] * len(sections.load), sections.load)

    def run(self) -> bool:
        """Return whether the buffers fit; raise OutOfStepsError if that is not known after `steps` choices."""
        if max(self._start.rest, default=0) > self._capacity:
            return False
        return all(self._is_solved(_Part(group, self._start, 0)) for group in self._groups(range(len(self._sizes))))

    def _is_solved(self, part: _Part) -> bool:
        """Run `_fits` with a stack of its own, which may be deeper than Python's."""
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
        for group in groups:
            group.sort(key=self._rank.__getitem__)
        return sorted(groups, key=len)

    def _fits(self, part: _Part) -> Generator[_Part, bool | None, bool]:
        """Return whether a part fits; yield the parts for which that must be known first."""
        for choice in self._choices(part):
            self.offsets[choice.item] = choice.offset
            failed = None
            for group in self._groups(item for item in part.items if item != choice.item):
                if not (yield _Part(group, choice.state, choice.offset)):
                    failed = group
                    break
            if failed is None:
                return True
            if self._is_apart(failed, choice.item):  # no other choice would help those
                return False
        return False

    def _choices(self, part: _Part) -> Iterator[_Choice]:
        """Yield the choices after which there may be room for the others, the best of the first few first."""
        items, state, lowest = part
        offsets = self._lowest_offsets(items, state.floor, lowest)
        candidates = self._candidates(items, offsets)
        looked_at = [
            choice for choice in map(self._look_ahead(items, offsets, state), candidates[: self._looked_at]) if choice
        ]
        yield from sorted(looked_at, key=lambda choice: choice[:2])
        yield from filter(None, map(self._look_ahead(items, offsets, state), candidates[self._looked_at :]))

    def _lowest_offsets(self, items: Iterable[int], floor: list[int], lowest: int) -> dict[int, int]:
        return {item: max(lowest, *floor[slice(*self._spans[item])]) for item in items}

    def _candidates(self, items: Iterable[int], offsets: dict[int, int]) -> list[int]:
        """Return the buffers that may be the next: not above another that fits below, and one of equal ones."""
        ceiling = min(offsets[item] + self._sizes[item] for item in items)
        found: dict[tuple[tuple[int, int], int], int] = {}
        for item in sorted(items, key=offsets.__getitem__):  # the order of ranks is kept among equal offsets
            if offsets[item] < ceiling:
                found.setdefault((self._spans[item], self._sizes[item]), item)
        return list(found.values())

    def _look_ahead(
        self, items: Sequence[int], offsets: dict[int, int], state: _State
    ) -> Callable[[int], _Choice | None]:
        """Return a function from a buffer to its choice; None if there is no room for the others then."""

        def choice(item: int) -> _Choice | None:
            if not self._steps.take():
                raise OutOfStepsError
            (first, end), size, offset = self._spans[item], self._sizes[item], offsets[item]
            floor = [*state.floor[:first], *[offset + size] * (end - first), *state.floor[end:]]
            rest = [*state.rest[:first], *(left - size for left in state.rest[first:end]), *state.rest[end:]]
            others = [other for other in items if other != item]
            tops = self._least_tops(others, floor, rest, offset)
            fullest = max(tops)
            if fullest > self._capacity:
                self._blame(others, tops.index(fullest))
                return None
            fullness = sum([(top / self._capacity) ** _SHARPNESS for top in tops])
            return _Choice(fullest, fullness, item, offset, _State(floor, rest))

        return choice

    def _least_tops(self, items: Iterable[int], floor: list[int], rest: list[int], lowest: int) -> list[int]:
        """Return the least top of each section: what is left, above the lowest offset that any of it can get."""
        offsets = self._lowest_offsets(items, floor, lowest)
        base = list(floor)
        for item in sorted(offsets, key=offsets.__getitem__, reverse=True):
            first, end = self._spans[item]
            base[first:end] = [offsets[item]] * (end - first)
        return [low + left for low, left in zip(base, rest, strict=True)]

    def _blame(self, items: Iterable[int], section: int) -> None:
        for item in items:
            first, end = self._spans[item]
            self.blamed[item] += first <= section < end

    def _is_apart(self, group: Iterable[int], item: int) -> bool:
        """Whether no buffer of a group is needed at the same time as this one."""
        first, end = self._spans[item]
        return all(end <= self._spans[other][0] or self._spans[other][1] <= first for other in group)
