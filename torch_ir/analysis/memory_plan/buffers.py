"""Buffers: memory that is needed from one step to another, and the load that they cause together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Buffer:
    """Memory of `size` units, needed from step `start` up to, but not including, step `end`."""

    start: int
    end: int
    size: int

    @property
    def area(self) -> int:
        return (self.end - self.start) * self.size


class Sections:
    """The times at which a largest set of buffers is needed: no other time needs all of them and one more.

    `spans` has the first section of each buffer, and the one after its last. Two buffers overlap in time exactly if
    they have a section in common. `load` is the sum of the sizes by section.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        events = [(buffer.start, True, index) for index, buffer in enumerate(buffers)]
        events += [(buffer.end, False, index) for index, buffer in enumerate(buffers)]
        firsts, ends = [0] * len(buffers), [0] * len(buffers)
        section = 0
        was_end = False
        for _, is_start, index in sorted(events):  # at the same step, ends come first
            if is_start:
                section += was_end
                firsts[index] = section
            else:
                ends[index] = section + 1
            was_end = not is_start
        self.spans = list(zip(firsts, ends, strict=True))
        changes = [0] * (section + 2)
        for buffer, (first, end) in zip(buffers, self.spans, strict=True):
            changes[first] += buffer.size
            changes[end] -= buffer.size
        self.load = list(accumulate(changes))[:-1]

    @property
    def peak(self) -> int:
        """The largest load: no arena is smaller."""
        return max(self.load, default=0)


def count_overlaps(buffers: Sequence[Buffer]) -> int:
    """Return the number of pairs of buffers that are needed at the same time."""
    events = sorted(
        (step, is_start) for buffer in buffers for step, is_start in ((buffer.start, True), (buffer.end, False))
    )
    pairs = alive = 0
    for _, is_start in events:  # at the same step, ends come first
        pairs += alive if is_start else 0
        alive += 1 if is_start else -1
    return pairs


def overlapping(buffers: Sequence[Buffer]) -> list[list[int]]:
    """For each buffer, return the numbers of those that are needed at the same time."""
    found: list[list[int]] = [[] for _ in buffers]
    alive: list[int] = []
    for index in sorted(range(len(buffers)), key=lambda index: buffers[index].start):
        alive = [other for other in alive if buffers[other].end > buffers[index].start]
        for other in alive:
            found[index].append(other)
            found[other].append(index)
        alive.append(index)
    return found
