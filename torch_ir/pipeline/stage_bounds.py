"""The longest stage from each segment that fits into memory, by a lower bound of its memory."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Load:
    """The cost of one segment: its time, and its bytes by kind."""

    seconds: float
    alive: float = 0.0  # peak of its own results
    inner: float = 0.0  # the same, with the results of the previous segment, if that is in the same stage
    given: float = 0.0  # what it reads from all previous segments
    weights: Mapping[Hashable, float] = field(default_factory=dict)  # weights and other values kept once per stage
    crossing: float = 0.0  # what a cut before it would send


def reach(loads: Sequence[Load], memory: float) -> list[int]:
    """Return the end of the longest stage from each segment; its start if even that segment does not fit."""
    if memory == math.inf:
        return [len(loads)] * len(loads)
    stage, found = _Stage(loads), []
    for _ in loads:
        while stage.start < stage.end and stage.bytes > memory:
            stage.shrink()
        while stage.end < len(loads):
            stage.grow()
            if stage.bytes > memory:
                stage.shrink()
                break
        found.append(stage.end)
        stage.advance()
    return found


class _Stage:
    """A sliding range of segments and a lower bound of its memory."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads
        self.start = self.end = 0
        self._kept = 0.0
        self._keepers: Counter[Hashable] = Counter()
        self._peaks: deque[int] = deque()  # segments except the first, with decreasing `inner`

    @property
    def bytes(self) -> float:
        first = self._loads[self.start]
        later = self._loads[self._peaks[0]].inner if self._peaks else 0.0
        return self._kept + first.given + max(first.alive, later)

    def grow(self) -> None:
        """Add a segment at the end."""
        weights = self._loads[self.end].weights
        self._kept += sum(size for weight, size in weights.items() if not self._keepers[weight])
        self._keepers.update(weights.keys())
        if self.end > self.start:
            self._push(self.end)
        self.end += 1

    def shrink(self) -> None:
        """Remove the last segment."""
        self.end -= 1
        self._release(self.end)
        if self._peaks and self._peaks[-1] == self.end:
            self._peaks.pop()
            for at in range((self._peaks[-1] if self._peaks else self.start) + 1, self.end):
                self._push(at)

    def advance(self) -> None:
        """Remove the first segment."""
        if self.end > self.start:
            self._release(self.start)
        self.start += 1
        self.end = max(self.start, self.end)
        if self._peaks and self._peaks[0] == self.start:
            self._peaks.popleft()

    def _push(self, at: int) -> None:
        while self._peaks and self._loads[self._peaks[-1]].inner <= self._loads[at].inner:
            self._peaks.pop()
        self._peaks.append(at)

    def _release(self, at: int) -> None:
        weights = self._loads[at].weights
        self._keepers.subtract(weights.keys())
        self._kept -= sum(size for weight, size in weights.items() if not self._keepers[weight])
