"""First fit: place buffers one after the other, in any order or in that of time, each as low as it fits."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from torch_ir.analysis.memory_plan.buffers import Buffer

_LOOKED_AT = 1000  # gaps


def first_fit(buffers: Sequence[Buffer], order: Iterable[int], overlaps: Sequence[Sequence[int]]) -> list[int]:
    """Return the offsets if buffers are placed in this order; `overlaps` are those needed at the same time."""
    offsets: list[int | None] = [None] * len(buffers)
    for index in order:
        offsets[index] = lowest_gap(buffers, index, overlaps[index], offsets)
    return [offset or 0 for offset in offsets]


def lowest_gap(buffers: Sequence[Buffer], index: int, overlaps: Iterable[int], offsets: Sequence[int | None]) -> int:
    """Return the lowest offset at which a buffer overlaps none of those that have one."""
    placed = [(at, at + buffers[other].size) for other in overlaps if (at := offsets[other]) is not None]
    lowest = 0
    for begin, end in sorted(placed):
        if begin - lowest >= buffers[index].size:
            break
        lowest = max(lowest, end)
    return lowest


def in_time_order(buffers: Sequence[Buffer]) -> list[int]:
    """Return the offsets if each buffer, when it starts, gets a gap that is free then; time grows with the buffers."""
    offsets = [0] * len(buffers)
    free = _Gaps()
    ends: list[tuple[int, int]] = []  # a heap
    for index in sorted(range(len(buffers)), key=lambda index: (buffers[index].start, -buffers[index].size)):
        while ends and ends[0][0] <= buffers[index].start:
            ended = heapq.heappop(ends)[1]
            free.give(offsets[ended], buffers[ended].size)
        offsets[index] = free.take(buffers[index].size)
        heapq.heappush(ends, (buffers[index].end, index))
    return offsets


class _Gaps:
    """Free memory below `top`, by offset; everything above is free."""

    def __init__(self) -> None:
        self._gaps: list[tuple[int, int]] = []  # begin and end; no two touch
        self._top = 0

    def take(self, size: int) -> int:
        """Return the offset of the lowest gap that is large enough, among the first thousand."""
        for at, (begin, end) in enumerate(self._gaps[:_LOOKED_AT]):
            if end - begin >= size:
                self._gaps[at : at + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        self._top += size
        return self._top - size

    def give(self, offset: int, size: int) -> None:
        """Free memory, and join it with the gaps that it touches."""
        begin, end = offset, offset + size
        first = last = bisect_left(self._gaps, (begin, end))
        if first and self._gaps[first - 1][1] == begin:
            first, begin = first - 1, self._gaps[first - 1][0]
        if last < len(self._gaps) and self._gaps[last][0] == end:
            last, end = last + 1, self._gaps[last][1]
        if end == self._top:
            self._top = begin
            del self._gaps[first:last]
        elif size:
            self._gaps[first:last] = [(begin, end)]


def top_of(buffers: Sequence[Buffer], offsets: Iterable[int]) -> int:
    """Return the size of the arena that these offsets need."""
    return max((at + buffer.size for at, buffer in zip(offsets, buffers, strict=True)), default=0)
