"""Strides of results, as torch's shape rules in Python compute them (`torch._prims_common` and `torch._refs`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch

_Sizes = Sequence[int]


def row_major_stride(shape: _Sizes) -> list[int]:
    """Return the strides of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether the strides are exactly those of a row-major tensor, also for sizes of 1."""
    return list(tensor.stride()) == row_major_stride(tensor.shape)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements, and is a permuted row-major tensor but for the strides of sizes of 1."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if size == 0 or stride != step:
            return False
        step *= size
    return True


def is_ordered(tensor: torch.Tensor) -> bool:
    """Whether the strides alone order the dimensions: all of them differ, and no size is 0 or 1."""
    return min(tensor.shape, default=2) > 1 and len({0, *tensor.stride()}) == tensor.dim() + 1


def elementwise_stride(*tensors: torch.Tensor) -> list[int]:
    """Return the strides of an element-wise result of tensors of one shape: the order of dimensions is kept.

    A sort by stride, in which dimensions that are expanded in all tensors stay where they are.
    """
    shape = tensors[0].shape
    order = _order(tensors)
    strides = row_major_stride([shape[dim] for dim in order])
    return [stride for _, stride in sorted(zip(order, strides, strict=True))]


def _order(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return the dimensions from the outermost to the innermost one."""
    rank = tensors[0].dim()
    is_rows = all(tensor.is_contiguous() for tensor in tensors)
    is_channels = rank == 4 and all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    if rank < 2 or (is_rows and not is_channels):
        return list(range(rank))
    if is_channels and not is_rows:
        return [0, 2, 3, 1]
    order = list(reversed(range(rank)))  # from the innermost
    for end in range(1, rank):
        at = end
        for before in reversed(range(end)):
            found = _compared(tensors, order[before], order[at])
            if found < 0:
                break
            if found > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return order[::-1]


def _compared(tensors: Sequence[torch.Tensor], one: int, other: int) -> int:
    """Return 1 if the first dimension is further out than the second, -1 if further in, 0 if no tensor decides."""
    for tensor in tensors:
        step, other_step = tensor.stride(one), tensor.stride(other)
        if step == 0 or other_step == 0:
            continue
        if step != other_step:
            return -1 if step < other_step else 1
        if not _reaches(tensor.shape[other], tensor.shape[one]):
            return 1
    return 0


def _reaches(size: int, other: int) -> bool:
    return other == 0 or (size != 0 and size >= other)


def viewed_stride(shape: _Sizes, stride: _Sizes, wanted: _Sizes) -> list[int] | None:
    """Return the strides of a view with other sizes; None if it needs a copy. The tensor has elements.

    From left to right, dimensions are merged until the wanted size divides them, and then split.
    """
    if not shape or not wanted:
        return [1] * len(wanted)
    if is_contiguous(shape, stride) and (len(wanted) == 1 < len(shape) or len(shape) == 1 < len(wanted) == 2):
        return row_major_stride(wanted)
    sizes, steps = list(shape), list(stride)
    for at, size in enumerate(wanted):
        if at == len(sizes):
            sizes.append(1)
            steps.append(steps[-1])
        if size == sizes[at]:
            continue
        end = at
        while prod(sizes[at : end + 1]) % size:
            end += 1
        if end > at:
            step = _merged_step(sizes[at : end + 1], steps[at : end + 1])
            if step is None:
                return None
            sizes[at : end + 1], steps[at : end + 1] = [prod(sizes[at : end + 1])], [step]
        if sizes[at] != size:
            inner = sizes[at] // size
            sizes[at : at + 1], steps[at : at + 1] = [size, inner], [steps[at] * inner, steps[at]]
    return steps[: len(wanted)]


def is_contiguous(shape: _Sizes, stride: _Sizes) -> bool:
    """Whether a tensor with elements is row-major but for the strides of sizes of 1."""
    expected = row_major_stride(shape)
    return all(size == 1 or step == other for size, step, other in zip(shape, stride, expected, strict=True))


def _merged_step(sizes: _Sizes, steps: _Sizes) -> int | None:
    """Return the stride of several dimensions as one; None if they are not one."""
    for (size, step), (inner, inner_step) in pairwise(zip(sizes, steps, strict=True)):
        if size != 1 and inner != 1 and step != inner_step * inner:
            return None
    return min([steps[-1], *(step for size, step in zip(sizes[:-1], steps[:-1], strict=True) if size != 1)])
