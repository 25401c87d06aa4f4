"""First fit: place buffers one after the other, in any order or in that of time, each as low as it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch_ir.analysis.memory_plan.buffers import Buffer


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
    """Return the offsets if each buffer, when it starts, gets the lowest gap between those that live then."""
    offsets = [0] * len(buffers)
    live: list[tuple[int, int, int]] = []  # offset, end of the memory, number; by offset
    for index in sorted(range(len(buffers)), key=lambda index: (buffers[index].start, -buffers[index].size)):
        live = [entry for entry in live if buffers[entry[2]].end > buffers[index].start]
        lowest, at = 0, 0
        for at, (begin, end, _) in enumerate(live):  # noqa: B007  # the position is used below
            if begin - lowest >= buffers[index].size:
                break
            lowest = max(lowest, end)
        else:
            at = len(live)
        offsets[index] = lowest
        live.insert(at, (lowest, lowest + buffers[index].size, index))
    return offsets


def top_of(buffers: Sequence[Buffer], offsets: Iterable[int]) -> int:
    """Return the size of the arena that these offsets need."""
    return max((at + buffer.size for at, buffer in zip(offsets, buffers, strict=True)), default=0)
