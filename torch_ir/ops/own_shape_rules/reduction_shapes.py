"""Shape rules of sums, maxima and other results over dimensions: all of them are row-major."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import DTYPES, FLOATS, Sizes, filled, floats, index_of, new, require
from torch_ir.ops.own_shape_rules.pointwise_shapes import like


def total(input: torch.Tensor, dim: Sizes | None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    """A sum; integers and truth values are summed as int64."""
    made = dtype or (input.dtype if input.dtype in FLOATS else torch.int64)
    require(made in DTYPES)
    return new(_kept(input, dim, keepdim), made)


def whole_total(input: torch.Tensor, *, dtype: Any = None) -> torch.Tensor:
    """A sum of all elements."""
    made = dtype or (input.dtype if input.dtype in FLOATS else torch.int64)
    require(made in DTYPES)
    return new((), made)


def norm(
    input: torch.Tensor, order: Any = 2, dim: Sizes | None = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    """`linalg_vector_norm`."""
    require(order in (1, 2))
    return mean(input, dim, keepdim, dtype=dtype)


def mean(input: torch.Tensor, dim: Sizes | None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    """A mean of floating-point numbers."""
    floats(input)
    require(dtype is None)
    return new(_kept(input, dim, keepdim), input.dtype)


def whole_mean(input: torch.Tensor, *, dtype: Any = None) -> torch.Tensor:
    """A mean of all elements."""
    floats(input)
    require(dtype is None)
    return new((), input.dtype)


def variance(input: torch.Tensor, dim: Sizes | None, unbiased: bool = True, keepdim: bool = False) -> torch.Tensor:
    """`var` and `std` with a flag."""
    return mean(input, dim, keepdim)


def extreme(input: torch.Tensor, dim: Sizes = (), keepdim: bool = False) -> torch.Tensor:
    """`amax` and `amin`."""
    return new(_kept(input, dim, keepdim), input.dtype)


def extreme_with_place(input: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`max` and `min` over a dimension: values and places."""
    shape = _kept(input, [dim], keepdim)
    return new(shape, input.dtype), new(shape, torch.int64)


def running_total(input: torch.Tensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """`cumsum`."""
    made = dtype or (input.dtype if input.dtype in FLOATS else torch.int64)
    require(made in DTYPES - {torch.bool})
    index_of(dim, input.dim())
    return new(input.shape, made)


def place_of_largest(input: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """`argmax` and `argmin`."""
    require(input.dtype != torch.bool and dim is not None)
    return new(_kept(input, [dim], keepdim) if dim is not None else (), torch.int64)


def largest_elements(input: torch.Tensor, k: int, dim: int = -1, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """`topk`: values and places."""
    require(input.dtype != torch.bool)
    at = index_of(dim, input.dim())
    require(0 <= k <= input.shape[at])
    shape = (*input.shape[:at], k, *input.shape[at + 1 :])
    return new(shape, input.dtype), new(shape, torch.int64)


def sorted_elements(input: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """`sort`: values and places, in the order of dimensions of the input."""
    index_of(dim, input.dim())
    filled(input)
    return like(input), like(input, torch.int64)


def _kept(input: torch.Tensor, dim: Sizes | None, keepdim: bool) -> list[int]:
    """Return the sizes after a reduction of some dimensions."""
    require(bool(dim))
    filled(input)
    reduced = {index_of(each, input.dim()) for each in dim or ()}
    require(len(reduced) == len(dim or ()))
    sizes = enumerate(input.shape)
    return [(1 if index in reduced else size) for index, size in sizes if keepdim or index not in reduced]
