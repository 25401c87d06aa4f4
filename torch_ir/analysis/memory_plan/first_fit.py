"""First fit: place buffers one after the other, each at the lowest offset where it fits."""

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


def top_of(buffers: Sequence[Buffer], offsets: Iterable[int]) -> int:
    """Return the size of the arena that these offsets need."""
    return max((at + buffer.size for at, buffer in zip(offsets, buffers, strict=True)), default=0)
