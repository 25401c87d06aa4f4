"""Shape rules of operators that move elements: views, copies, joins, indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import INTEGERS, Sizes, filled, index_of, new, require, row_major
from torch_ir.ops.own_shape_rules.pointwise_shapes import binary, broadcast_shape, like
from torch_ir.ops.own_shape_rules.result_strides import (
    elementwise_stride,
    is_dense,
    is_row_major,
    row_major_stride,
    viewed_stride,
)

_aten = torch.ops.aten


def view(tensor: torch.Tensor, size: Sizes) -> torch.Tensor:
    """A view with other sizes; an impossible one is left to torch."""
    return _viewed(tensor, _inferred(tensor, size), may_copy=False)


def reshape(tensor: torch.Tensor, shape: Sizes) -> torch.Tensor:
    """A view if that is possible, else a copy."""
    return _viewed(tensor, _inferred(tensor, shape), may_copy=True)


def reshape_as(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`reshape` to the sizes of another tensor."""
    return reshape(tensor, other.shape)


def flatten(tensor: torch.Tensor, start_dim: int = 0, end_dim: int = -1) -> torch.Tensor:
    """Several dimensions become one."""
    require(tensor.dim() > 0)
    start, end = index_of(start_dim, tensor.dim()), index_of(end_dim, tensor.dim())
    require(start <= end)
    if start == end:
        return tensor
    return reshape(tensor, (*tensor.shape[:start], prod(tensor.shape[start : end + 1]), *tensor.shape[end + 1 :]))


def unflatten(tensor: torch.Tensor, dim: int, sizes: Sizes) -> torch.Tensor:
    """One dimension becomes several."""
    at = index_of(dim, tensor.dim())
    require(len(sizes) > 0)
    rest = abs(prod(sizes))
    require(sizes.count(-1) < 2 and rest > 0 and tensor.shape[at] % rest == 0)
    parts = [tensor.shape[at] // rest if size == -1 else size for size in sizes]
    require(prod(parts) == tensor.shape[at])
    return view(tensor, (*tensor.shape[:at], *parts, *tensor.shape[at + 1 :]))


def _inferred(tensor: torch.Tensor, size: Sizes) -> list[int]:
    """Return sizes without -1."""
    known = prod(each for each in size if each != -1)
    require(list(size).count(-1) < 2 and all(each > 0 or each == -1 for each in size))
    filled(tensor)
    sizes = [tensor.numel() // known if each == -1 else each for each in size]
    require(prod(sizes) == tensor.numel())
    return sizes


def _viewed(tensor: torch.Tensor, sizes: list[int], may_copy: bool) -> torch.Tensor:
    try:
        tensor.view(sizes)
    except RuntimeError:  # not with these strides
        require(may_copy)
        return new(sizes, tensor.dtype, viewed_stride(tensor.shape, row_major_stride(tensor.shape), sizes))
    strides = viewed_stride(tensor.shape, tensor.stride(), sizes)
    require(strides is not None)
    return tensor.as_strided(sizes, strides or ())


def itself(tensor: torch.Tensor) -> torch.Tensor:
    """`detach_`."""
    return tensor


def clone(tensor: torch.Tensor, *, memory_format: Any = None) -> torch.Tensor:
    """A copy, row-major or with the strides of the tensor."""
    if memory_format == torch.contiguous_format:
        return new(tensor.shape, tensor.dtype)
    require(memory_format in (None, torch.preserve_format))
    filled(tensor)
    return new(tensor.shape, tensor.dtype, tensor.stride()) if tensor.dim() > 1 and is_dense(tensor) else like(tensor)


def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Tensors of one dtype, in one dimension."""
    first = tensors[0]
    at = index_of(dim, first.dim())
    rests = {(each.dtype, each.shape[:at], each.shape[at + 1 :], each.dim()) for each in tensors}
    require(len(rests) == 1 and not all(map(may_be_channels_last, tensors)))
    return new((*first.shape[:at], sum(each.shape[at] for each in tensors), *first.shape[at + 1 :]), first.dtype)


def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Tensors of one dtype and shape, in a new dimension."""
    first = tensors[0]
    require(len({(each.dtype, each.shape) for each in tensors}) == 1)
    at = index_of(dim, first.dim() + 1)
    return new((*first.shape[:at], len(tensors), *first.shape[at:]), first.dtype)


def may_be_channels_last(tensor: torch.Tensor) -> bool:
    """Whether results may be laid out with the channels innermost; also true of some other tensors."""
    return tensor.dim() in (4, 5) and tensor.stride(1) <= tensor.stride(-1) and not is_row_major(tensor)


def repeat(tensor: torch.Tensor, repeats: Sizes) -> torch.Tensor:
    """A tensor several times, in each dimension."""
    more = len(repeats) - tensor.dim()
    require(more >= 0 and min(repeats, default=1) > 0)
    filled(tensor)
    return new([size * count for size, count in zip((*[1] * more, *tensor.shape), repeats, strict=True)], tensor.dtype)


def repeat_elements(
    tensor: torch.Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> torch.Tensor:
    """`repeat_interleave`: each element several times, in one dimension."""
    require(dim is not None and repeats > 0)
    filled(tensor)
    at = index_of(dim or 0, tensor.dim())
    require(output_size in (None, tensor.shape[at] * repeats))
    return new((*tensor.shape[:at], tensor.shape[at] * repeats, *tensor.shape[at + 1 :]), tensor.dtype)


def select_rows(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """`index_select`."""
    require(index.dim() == 1 and index.dtype in INTEGERS)
    filled(tensor, index)
    at = index_of(dim, tensor.dim())
    return new((*tensor.shape[:at], index.shape[0], *tensor.shape[at + 1 :]), tensor.dtype)


def gather(input: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> torch.Tensor:
    """Elements at indices in one dimension."""
    rank = input.dim()
    require(index.dtype == torch.int64 and index.dim() == rank > 0 and -rank <= dim < rank and index.numel() > 0)
    require(all(index.shape[each] <= input.shape[each] for each in range(rank) if each != dim % rank))
    return new(index.shape, input.dtype)


def embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any) -> torch.Tensor:
    """Rows of a matrix."""
    require(weight.dim() == 2 and indices.dtype in INTEGERS)
    return new((*indices.shape, weight.shape[1]), weight.dtype)


def index(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Elements at indices in several dimensions, by integers.

    The dimensions of the indices come where the first of them was, or first if the indexed dimensions are not
    neighbours.
    """
    found = [at for at, each in enumerate(indices) if each is not None]
    given = [each for each in indices if each is not None]
    require(len(found) > 0 and len(indices) <= tensor.dim() and all(each.dtype in INTEGERS for each in given))
    filled(tensor)
    shape = broadcast_shape(*(each.shape for each in given))
    require(all(each.dim() > 0 for each in given))
    start = found[0] if found == list(range(found[0], found[-1] + 1)) else 0
    rest = [at for at in range(tensor.dim()) if at not in found]
    before, after = rest[:start], rest[start:]
    sizes = [*(tensor.shape[at] for at in before), *shape, *(tensor.shape[at] for at in after)]
    steps = [*(tensor.stride(at) for at in before), *[0] * len(shape), *(tensor.stride(at) for at in after)]
    return new(sizes, tensor.dtype, elementwise_stride(new(sizes, tensor.dtype, steps)))


def put_index(
    tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """`index_put`: a copy with other elements at indices."""
    return _copied(tensor, index(tensor, indices), values, may_expand=True)


def put_slice(
    tensor: torch.Tensor,
    part: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    """`slice_scatter`: a copy with another part."""
    return _copied(tensor, _aten.slice.Tensor(tensor, dim, start, end, step), part)


def put_element(tensor: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """`select_scatter`: a copy with another part."""
    return _copied(tensor, _aten.select.int(tensor, dim, index), part)


def _copied(tensor: torch.Tensor, part: torch.Tensor, values: torch.Tensor, may_expand: bool = False) -> torch.Tensor:
    row_major(tensor)
    require(tensor.storage_offset() == 0)  # the copy would have the same
    filled(tensor, part)
    found = broadcast_shape(part.shape, values.shape) if may_expand else list(values.shape)
    require(values.dtype == tensor.dtype and found == list(part.shape))
    return new(tensor.shape, tensor.dtype)


def flip(tensor: torch.Tensor, dims: Sizes) -> torch.Tensor:
    """Elements in reverse."""
    require(len({index_of(dim, tensor.dim()) for dim in dims}) == len(dims) > 0)
    return like(tensor)


def expanded(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`broadcast_tensors`: views of one shape."""
    shape = broadcast_shape(*(tensor.shape for tensor in tensors))
    require(min(shape, default=2) > 1)  # sizes of 1 that are added have other strides
    return [tensor if list(tensor.shape) == shape else tensor.expand(shape) for tensor in tensors]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """`lift_fresh_copy`."""
    row_major(tensor)
    return new(tensor.shape, tensor.dtype)


def triangle(tensor: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    """`tril` and `triu`."""
    require(tensor.dim() > 1)
    row_major(tensor)
    return new(tensor.shape, tensor.dtype)


def differences(
    tensor: torch.Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: torch.Tensor | None = None,
    append: torch.Tensor | None = None,
) -> torch.Tensor:
    """`diff` of neighbours: a difference of two parts."""
    tensors = [each for each in (prepend, tensor, append) if each is not None]
    whole = cat(tensors, dim) if len(tensors) > 1 else tensor
    at = index_of(dim, whole.dim())
    require(n == 1 and whole.shape[at] > 1)
    count = whole.shape[at] - 1
    return binary(whole.narrow(at, 1, count), whole.narrow(at, 0, count))
