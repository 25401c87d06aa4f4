"""Cut a sequence of segments into stages, from their costs alone; exact unless there are very many places to cut.

    partition = Partition(loads, memory)
    slowest = partition.slowest(4)         # the minimal time of the slowest of four stages
    partition.starts(4, slowest * 1.05)    # where four such stages start, with the fewest bytes between them

Segments keep their order, so a stage is a range of them. Adding a segment at its end never makes a stage faster or
smaller, so a stage may always end earlier. Adding one at its start may make it smaller: a received value is kept while
the stage runs, but one computed inside only until it is read.
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
_MOST_PLACES = 512  # candidate ends of a stage; each is tried with each candidate start


class _Cut(NamedTuple):
    """The best cut up to some end: bytes sent, unevenness, and the starts of its stages."""

    sent: float
    unevenness: float
    starts: tuple[int, ...]


class Partition:
    """Cuts of a sequence of segments in which no stage exceeds `memory` bytes.

    Loads yield a lower bound of a stage's memory; `shorten` excludes a stage that was measured to be too large.
    """

    def __init__(self, loads: Sequence[Load], memory: float = math.inf) -> None:
        self.loads = loads
        self._times = [0.0, *accumulate(load.seconds for load in loads)]
        self._reach = reach(loads, memory)

    def fewest(self, seconds: float = math.inf) -> int:
        """Return the minimal number of stages of at most that time; 0 if there is no such cut."""
        furthest = self._furthest(seconds)
        end = count = 0
        while end < len(self.loads):
            before, end = end, furthest[end]
            if end == before:
                return 0
            count += 1
        return count

    def shorten(self, start: int, end: int) -> None:
        """Exclude stages from `start` to `end` or beyond, because they are too large."""
        self._reach[start] = min(self._reach[start], end - 1)

    def slowest(self, stages: int) -> float:
        """Return the minimal time of the slowest of that many stages; a cut into so few must exist."""
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
        """Return the starts of stages of at most that time, minimising bytes sent, then unevenness; () if none."""
        cuts = {0: _Cut(0.0, 0.0, ())}
        for ends in self._places(stages, seconds):
            furthest = {start: self._end(start, seconds) for start in cuts}
            cuts = {end: cut for end in ends if (cut := self._best(cuts, end, furthest)) is not None}
        return cuts[len(self.loads)].starts if len(self.loads) in cuts else ()

    def _best(self, cuts: Mapping[int, _Cut], end: int, furthest: Mapping[int, int]) -> _Cut | None:
        """Return the best cut that ends there, from the best cuts one stage earlier."""
        found = []
        for start, cut in cuts.items():
            if start < end <= furthest[start]:
                sent = self.loads[start].crossing if start else 0.0
                taken = self._times[end] - self._times[start]
                found.append(_Cut(cut.sent + sent, cut.unevenness + taken * taken, (*cut.starts, start)))
        return min(found, default=None)

    def _places(self, stages: int, seconds: float) -> list[Sequence[int]]:
        """Return candidate ends of each stage; of very many, those that send least, and one that is surely feasible."""
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
        """Return about equally spaced places, each the one that sends least in its neighbourhood."""
        step = -(-len(window) // _MOST_PLACES)
        return [min(window[at : at + step], key=self._sent_at) for at in range(0, len(window), step or 1)]

    def _sent_at(self, place: int) -> float:
        return self.loads[place].crossing if place < len(self.loads) else 0.0

    def _windows(self, stages: int, seconds: float) -> tuple[list[int], list[int]]:
        """Return the earliest and latest end of each stage for which the stages before and after are feasible."""
        count, furthest = len(self.loads), self._furthest(seconds)
        last, first = [0], [count]
        for stage in range(1, stages + 1):
            last.append(min(furthest[last[-1]], count - (stages - stage)))
            first.append(max(bisect_left(furthest, first[-1]), stages - stage))
        return first[::-1], last

    def _furthest(self, seconds: float) -> list[int]:
        """Return how far a stage may reach that starts at each place or before it."""
        return list(accumulate((self._end(start, seconds) for start in range(len(self.loads) + 1)), max))

    def _end(self, start: int, seconds: float) -> int:
        """Return how far a stage may reach that starts there."""
        if start == len(self.loads):
            return start
        until = (self._times[start] + seconds) * _ROUNDING
        return min(bisect_right(self._times, until, start + 1) - 1, self._reach[start])
