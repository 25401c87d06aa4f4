"""How far a stage may go from each segment of a line, by the least that it holds."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Load:
    """What one segment takes: its time, and the bytes that it makes, is given, keeps and is sent."""

    seconds: float
    alive: float = 0.0  # of what it makes, where that is most
    inner: float = 0.0  # the same, where the segment before is of the same stage and what that made is alive too
    given: float = 0.0  # of what it reads of all segments before
    weights: Mapping[Hashable, float] = field(default_factory=dict)  # and all else that a stage keeps, each once
    crossing: float = 0.0  # what a cut before it sends


def reach(loads: Sequence[Load], memory: float) -> list[int]:
    """Where the longest stage ends that starts at each segment; at its start, if it does not fit even alone."""
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
    """A range of segments that moves along the line, and the least that it holds."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads
        self.start = self.end = 0
        self._kept = 0.0
        self._keepers: Counter[Hashable] = Counter()
        self._peaks: deque[int] = deque()  # segments but the first, each with more alive than all after it

    @property
    def bytes(self) -> float:
        first = self._loads[self.start]
        later = self._loads[self._peaks[0]].inner if self._peaks else 0.0
        return self._kept + first.given + max(first.alive, later)

    def grow(self) -> None:
        """Take one more segment at the end."""
        weights = self._loads[self.end].weights
        self._kept += sum(size for weight, size in weights.items() if not self._keepers[weight])
        self._keepers.update(weights.keys())
        if self.end > self.start:
            self._push(self.end)
        self.end += 1

    def shrink(self) -> None:
        """Let go of the last segment."""
        self.end -= 1
        self._let_go(self.end)
        if self._peaks and self._peaks[-1] == self.end:
            self._peaks.pop()
            for at in range((self._peaks[-1] if self._peaks else self.start) + 1, self.end):
                self._push(at)

    def advance(self) -> None:
        """Start with the next segment."""
        if self.end > self.start:
            self._let_go(self.start)
        self.start += 1
        self.end = max(self.start, self.end)
        if self._peaks and self._peaks[0] == self.start:
            self._peaks.popleft()

    def _push(self, at: int) -> None:
        while self._peaks and self._loads[self._peaks[-1]].inner <= self._loads[at].inner:
            self._peaks.pop()
        self._peaks.append(at)

    def _let_go(self, at: int) -> None:
        weights = self._loads[at].weights
        self._keepers.subtract(weights.keys())
        self._kept -= sum(size for weight, size in weights.items() if not self._keepers[weight])
