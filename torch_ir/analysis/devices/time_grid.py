"""Seconds of an operator on a grid of sizes, and between its points.

grid = fitted(((1, 64), (64, 256)), {(0, 0): 1e-6, (1, 1): 1e-4})
grid.at((16, 128))

Between points, the logarithm of the time is interpolated linearly over the logarithms of the sizes, which is exact for
work that is a product of sizes. Above the last size, the time grows with the size; below the first, it stays.
Times never decrease as a size grows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Axes = tuple[tuple[float, ...], ...]
Index = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Seconds at every combination of the sizes of the axes, the last axis varying fastest."""

    axes: Axes
    seconds: tuple[float, ...]

    def at(self, sizes: Sequence[float]) -> float:
        """Return the seconds at these sizes, one for each axis."""
        places = [_place(axis, size) for axis, size in zip(self.axes, sizes, strict=True)]
        logarithm = 0.0
        for corner in product((0, 1), repeat=len(places)):
            share = math.prod(
                place.share if side else 1 - place.share for place, side in zip(places, corner, strict=True)
            )
            if share:
                index = tuple(place.index + side for place, side in zip(places, corner, strict=True))
                logarithm += share * math.log(self.seconds[_flat(self.axes, index)])
        return math.exp(logarithm) * math.prod(place.beyond for place in places)


@dataclass(frozen=True)
class _Place:
    """A size on an axis: the point before it, the share of the way to the next, and how far it is beyond the last."""

    index: int
    share: float
    beyond: float = 1.0


def _place(axis: Sequence[float], size: float) -> _Place:
    if size <= axis[0]:
        return _Place(0, 0.0)
    if size >= axis[-1]:
        return _Place(len(axis) - 1, 0.0, size / axis[-1])
    index = bisect_right(axis, size) - 1
    return _Place(index, math.log(size / axis[index]) / math.log(axis[index + 1] / axis[index]))


def _flat(axes: Axes, index: Index) -> int:
    position = 0
    for axis, number in zip(axes, index, strict=True):
        position = position * len(axis) + number
    return position


def indices(axes: Axes) -> Iterator[Index]:
    """Yield the indices of all points, in the order of `Grid.seconds`."""
    return product(*(range(len(axis)) for axis in axes))


def fitted(axes: Axes, measured: Mapping[Index, float]) -> Grid:
    """Return the grid through measured times.

    A point that was not measured is interpolated between the nearest ones along an axis; where there is none on one
    side, it takes as long as the nearest one, times the ratio of their sizes.
    """
    seconds = dict(measured)
    for index in indices(axes):
        if index not in measured:
            found = [value for dimension in range(len(axes)) for value in _between(axes, measured, index, dimension)]
            seconds[index] = math.exp(sum(map(math.log, found)) / len(found)) if found else 0.0
    left = [index for index, value in seconds.items() if not value]
    for index in left:
        seconds[index] = _from_nearest(axes, {each: value for each, value in seconds.items() if value}, index)
    for dimension, axis in enumerate(axes):  # noise only adds time: a point takes no longer than a larger one
        for index in reversed(list(indices(axes))):
            if index[dimension] + 1 < len(axis):
                after = (*index[:dimension], index[dimension] + 1, *index[dimension + 1 :])
                seconds[index] = min(seconds[index], seconds[after])
    return Grid(axes, tuple(seconds[index] for index in indices(axes)))


def _between(axes: Axes, measured: Mapping[Index, float], index: Index, dimension: int) -> Iterator[float]:
    """Yield the time between the nearest measured points on both sides along an axis, if there are such."""
    here, axis = index[dimension], axes[dimension]
    along = [(*index[:dimension], number, *index[dimension + 1 :]) for number in range(len(axis))]
    below = next((number for number in range(here - 1, -1, -1) if along[number] in measured), None)
    above = next((number for number in range(here + 1, len(axis)) if along[number] in measured), None)
    if below is not None and above is not None:
        share = math.log(axis[here] / axis[below]) / math.log(axis[above] / axis[below])
        yield math.exp((1 - share) * math.log(measured[along[below]]) + share * math.log(measured[along[above]]))


def _from_nearest(axes: Axes, measured: Mapping[Index, float], index: Index) -> float:
    def distance(other: Index) -> tuple[int, int]:
        steps = [one - two for one, two in zip(index, other, strict=True)]
        return sum(map(abs, steps)), sum(step < 0 for step in steps)  # a smaller point, if two are equally near

    nearest = min(measured, key=distance)
    sizes = zip(axes, index, nearest, strict=True)
    return measured[nearest] * math.prod(axis[here] / axis[there] for axis, here, there in sizes)
