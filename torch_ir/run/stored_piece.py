"""A piece of a tensor in a .safetensors file: only its bytes are read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from torch_ir.run.stored import StoredTensor

Ranges = tuple[tuple[int, int], ...]  # start, stop


@dataclass(frozen=True)
class StoredPiece(StoredTensor):
    """The elements in some ranges of each dimension of a stored tensor."""

    whole: StoredTensor
    ranges: tuple[Ranges, ...]  # of the whole, by dimension

    @classmethod
    def of(cls, whole: StoredTensor) -> StoredPiece:
        """Return all of a tensor as a piece."""
        ranges = tuple(((0, size),) for size in whole.shape)
        return cls(whole.path, whole.dtype, whole.shape, whole.offset, whole.stamp, whole, ranges)

    def cut(self, dim: int, ranges: Sequence[tuple[int, int]], size: int | None = None) -> StoredPiece:
        """Return the part in ranges of one dimension of this piece; with zeros behind it, if its `size` is larger."""
        shape = list(self.shape)
        shape[dim] = sum(stop - start for start, stop in ranges) if size is None else size
        kept = tuple(part for start, stop in ranges for part in _within(self.ranges[dim], start, stop))
        return replace(self, shape=tuple(shape), ranges=(*self.ranges[:dim], kept, *self.ranges[dim + 1 :]))

    def load(self) -> torch.Tensor:
        stored = [sum(stop - start for start, stop in ranges) for ranges in self.ranges]
        rows = (self.shape[0], *stored[1:]) if stored else ()
        target = torch.empty(rows, dtype=self.dtype, device="cpu")
        flat, at = target.view(-1), 0
        for start, stop in self._runs():
            flat[at : at + stop - start] = self.whole.elements(start, stop)
            at += stop - start
        flat[at:].zero_()
        if rows == self.shape:
            return target
        padded = torch.zeros(self.shape, dtype=self.dtype, device="cpu")
        padded[tuple(map(slice, rows))] = target
        return padded

    def elements(self, start: int, stop: int) -> torch.Tensor:
        return self.load().view(-1)[start:stop]

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of adjacent elements in the file, in order."""
        shape = self.whole.shape
        cut = [dim for dim, size in enumerate(shape) if self.ranges[dim] != ((0, size),)]
        last = cut[-1] if cut else -1
        inner = math.prod(shape[last + 1 :])
        if not cut:
            yield 0, inner
            return
        places = [[at for start, stop in ranges for at in range(start, stop)] for ranges in self.ranges[:last]]
        for outer in itertools.product(*places):
            first = 0
            for at, size in zip(outer, shape, strict=False):
                first = first * size + at
            for start, stop in self.ranges[last]:
                yield (first * shape[last] + start) * inner, (first * shape[last] + stop) * inner


def _within(ranges: Ranges, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of ranges that cover positions `start` to `stop` in their concatenation."""
    for first, end in ranges:
        size = end - first
        low, high = max(start, 0), min(stop, size)
        if low < high:
            yield first + low, first + high
        start, stop = start - size, stop - size
