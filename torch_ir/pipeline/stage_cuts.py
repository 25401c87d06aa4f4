"""Where to cut a line of segments into stages: numbers alone, exactly, unless there are very many places to cut.

    partition = Partition(loads, memory)
    slowest = partition.slowest(4)         # the least that the slowest of four stages can take
    partition.starts(4, slowest * 1.05)    # where four such stages start, with the fewest bytes between them

Segments stay in their order, so a stage is a range of them. One more segment at its end never makes a stage faster or
smaller, so where a stage may end, it may also end earlier. One more at its start may make it smaller: a value that is
sent is held for as long as the stage runs, and one that is made inside only until it was read.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from torch_ir.pipeline.stage_bounds import Load, reach

_ROUNDING = 1 + 1e-9
_HALVINGS = 50
_MOST_PLACES = 512  # where a stage may end; each is tried with each place where it may start


class _Way(NamedTuple):
    """The best way to end a stage somewhere: what it sends, how uneven it is, and where its stages start."""

    sent: float
    unevenness: float
    starts: tuple[int, ...]


class Partition:
    """Ways to cut a line of segments, where no stage may hold more than `memory` bytes.

    Loads tell the least that a stage holds; `shorten` says of one that was counted that it is too large.
    """

    def __init__(self, loads: Sequence[Load], memory: float = math.inf) -> None:
        self.loads = loads
        self._times = [0.0, *accumulate(load.seconds for load in loads)]
        self._reach = reach(loads, memory)

    def fewest(self, seconds: float = math.inf) -> int:
        """How few stages there can be, if none takes longer than that; 0 if there is no such way."""
        furthest = self._furthest(seconds)
        end = count = 0
        while end < len(self.loads):
            before, end = end, furthest[end]
            if end == before:
                return 0
            count += 1
        return count

    def shorten(self, start: int, end: int) -> None:
        """Let a stage that starts there end before `end`, as it would hold too much."""
        self._reach[start] = min(self._reach[start], end - 1)

    def slowest(self, stages: int) -> float:
        """The least that the slowest of that many stages can take; there must be a way to have so few."""
        high = self._times[-1]
        low = max(high / stages, max((load.seconds for load in self.loads), default=0.0))
        for _ in range(_HALVINGS):
            if 0 < self.fewest(low) <= stages:
                return low
            middle = (low + high) / 2
            if 0 < self.fewest(middle) <= stages:
                high = middle
            else:
                low = middle
        return high

    def starts(self, stages: int, seconds: float) -> tuple[int, ...]:
        """Where stages start that each take no longer than that, so that least is sent, and then most evenly.

        Nowhere, if there is no way to have just so many.
        """
        ways = {0: _Way(0.0, 0.0, ())}
        for ends in self._places(stages, seconds):
            furthest = {start: self._end(start, seconds) for start in ways}
            ways = {end: way for end in ends if (way := self._best(ways, end, furthest)) is not None}
        return ways[len(self.loads)].starts if len(self.loads) in ways else ()

    def _best(self, ways: Mapping[int, _Way], end: int, furthest: Mapping[int, int]) -> _Way | None:
        """The best way to let a stage end there, of the ways to end the one before."""
        found = []
        for start, way in ways.items():
            if start < end <= furthest[start]:
                sent = self.loads[start].crossing if start else 0.0
                taken = self._times[end] - self._times[start]
                found.append(_Way(way.sent + sent, way.unevenness + taken * taken, (*way.starts, start)))
        return min(found, default=None)

    def _places(self, stages: int, seconds: float) -> list[Sequence[int]]:
        """Where each stage may end; of very many places, those where least is sent, and one that is sure to do."""
        windows = [range(low, high + 1) for low, high in zip(*self._windows(stages, seconds), strict=True)][1:]
        if all(len(window) <= _MOST_PLACES for window in windows):
            return list(windows)
        places = [self._thinned(windows[-1])]
        sure = len(self.loads)
        for window in reversed(windows[:-1]):
            sure = max(window, key=lambda start: min(self._end(start, seconds), sure), default=sure)
            places.append(sorted({*self._thinned(window), sure}))
        return places[::-1]

    def _thinned(self, window: Sequence[int]) -> Sequence[int]:
        """Places at equal distances, about, each where least is sent around there."""
        step = -(-len(window) // _MOST_PLACES)
        return [min(window[at : at + step], key=self._sent_at) for at in range(0, len(window), step or 1)]

    def _sent_at(self, place: int) -> float:
        return self.loads[place].crossing if place < len(self.loads) else 0.0

    def _windows(self, stages: int, seconds: float) -> tuple[list[int], list[int]]:
        """Between which places each stage must end, for those before and after it to be allowed too."""
        count, furthest = len(self.loads), self._furthest(seconds)
        last, first = [0], [count]
        for stage in range(1, stages + 1):
            last.append(min(furthest[last[-1]], count - (stages - stage)))
            first.append(max(bisect_left(furthest, first[-1]), stages - stage))
        return first[::-1], last

    def _furthest(self, seconds: float) -> list[int]:
        """How far a stage may go that starts at each place, or anywhere before."""
        return list(accumulate((self._end(start, seconds) for start in range(len(self.loads) + 1)), max))

    def _end(self, start: int, seconds: float) -> int:
        """How far a stage may go that starts there."""
        if start == len(self.loads):
            return start
        until = (self._times[start] + seconds) * _ROUNDING
        return min(bisect_right(self._times, until, start + 1) - 1, self._reach[start])
