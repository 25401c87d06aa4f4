"""The sizes at which each family is measured: first on a coarse grid, so that any time limit gives a fit."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from torch_ir.analysis.devices.calibration import COLD, CPU, CUDA, WARM, GridKey
from torch_ir.analysis.devices.operator_families import AXES, CONTRACTIONS, IN_COMPILED, VIEW
from torch_ir.analysis.devices.time_grid import Axes, Index, indices

_COARSE = (4, 2, 1)  # steps between the points of a round


class Limit(NamedTuple):
    """The largest work of a point: FLOPs of a contraction, and bytes of other operators."""

    flops: float
    bytes: float


LIMITS: Mapping[str, Limit] = {CPU: Limit(3e9, 1e8), CUDA: Limit(3e12, 2e9)}


def _powers(first: int, last: int) -> tuple[float, ...]:
    """Return sizes up to the last, each four times the one before."""
    sizes = [float(first)]
    while sizes[-1] * 4 <= last:
        sizes.append(sizes[-1] * 4)
    return tuple(sizes)


def axes_of(family: str, kind: str) -> Axes:
    """Return the sizes along each axis of a family, for a kind of device."""
    is_gpu = kind == CUDA
    widths = _powers(64, 16384 if is_gpu else 4096)
    rows = (*_powers(1, 4096), 8192.0) if is_gpu else _powers(1, 1024)
    heads = (8.0, 64.0, 512.0) if is_gpu else (4.0, 16.0, 64.0)
    lengths = (16.0, 128.0, 1024.0, 4096.0) if is_gpu else (16.0, 64.0, 256.0, 1024.0)
    places = _powers(49, 12544 * (16 if is_gpu else 1))
    inputs, outputs = (4.0, 32.0, 256.0, 1024.0), (32.0, 256.0, 1024.0)
    attention = (heads, (1.0, *lengths), lengths, (64.0, 128.0))
    grids: dict[str, Axes] = {
        "matmul": (rows, widths, widths),
        "batched_matmul": ((1.0, 8.0, 64.0), (1.0, 16.0, 128.0, 1024.0), (16.0, 128.0, 1024.0), (16.0, 128.0, 1024.0)),
        "conv": (places, inputs, outputs, (1.0, 9.0, 49.0)),
        "depthwise": (places, outputs, (9.0, 49.0)),
        "attention": attention,
        "masked_attention": attention,
        "broadcast_mask_attention": (heads[:2], (1.0, *lengths[:3]), lengths[:3], (64.0, 128.0)),
    }
    return grids.get(family.removeprefix(IN_COMPILED), (_powers(4096, 1 << (31 if is_gpu else 28)),))


def keys_of(kind: str, dtypes: tuple[str, ...]) -> list[GridKey]:
    """Return the grids of a device; weights of matrix products are read from memory in one, from the cache in another.

    A GPU multiplies matrices in any layout, and a CPU has one kernel for all masks.
    """
    left_out = (VIEW, "compiled_matmul" if kind == CUDA else "broadcast_mask_attention")
    return [
        GridKey(family, dtype, weights)
        for family in AXES
        if family not in left_out
        for dtype in dtypes
        for weights in ((COLD, WARM) if family.endswith("matmul") and "batched" not in family else (COLD,))
    ]


def rounds_of(family: str, kind: str) -> list[list[Index]]:
    """Return the points of a family in three rounds of finer and finer grids, without those beyond the limits."""
    axes, seen = axes_of(family, kind), set[Index]()
    rounds: list[list[Index]] = []
    for step in _COARSE:
        found = [
            index
            for index in indices(axes)
            if index not in seen and _is_on(index, axes, step) and _is_within(family, kind, axes, index)
        ]
        seen.update(found)
        rounds.append(sorted(found, key=lambda index: prod(_sizes(axes, index))))
    return rounds


def _is_on(index: Index, axes: Axes, step: int) -> bool:
    return all(number % step == 0 or number == len(axis) - 1 for number, axis in zip(index, axes, strict=True))


def _is_within(family: str, kind: str, axes: Axes, index: Index) -> bool:
    work = prod(_sizes(axes, index))
    if family in CONTRACTIONS:
        return (4 if "attention" in family else 2) * work <= LIMITS[kind].flops
    return work <= LIMITS[kind].bytes


def sizes_at(family: str, kind: str, index: Index) -> list[float]:
    """Return the sizes of a point."""
    return _sizes(axes_of(family, kind), index)


def _sizes(axes: Axes, index: Index) -> list[float]:
    return [axis[number] for axis, number in zip(axes, index, strict=True)]
