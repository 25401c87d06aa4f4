"""Shape rules of operators that create or cast tensors, and of assertions."""

from __future__ import annotations

from math import ceil
from typing import Any

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import CPU, DTYPES, FLOATS, Sizes, new, require
from torch_ir.ops.own_shape_rules.pointwise_shapes import like


def _on_cpu(layout: Any, device: Any, pin_memory: Any) -> None:
    require(layout in (None, torch.strided) and device in (None, CPU) and not pin_memory)


def zeros(
    size: Sizes, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """`zeros`, `ones` and others."""
    _on_cpu(layout, device, pin_memory)
    require(min(size, default=0) >= 0)
    return new(size, _known(dtype or torch.get_default_dtype()))


def random(size: Sizes, *, dtype: Any = None, **where: Any) -> torch.Tensor:
    """`rand` and `randn`."""
    require(dtype is None or dtype in FLOATS)
    return zeros(size, dtype=dtype, **where)


def identity(*size: int, **where: Any) -> torch.Tensor:
    """`eye`."""
    return zeros((size[0], size[-1]), **where)


def full(size: Sizes, fill_value: Any, *, dtype: Any = None, **where: Any) -> torch.Tensor:
    """A tensor of one value."""
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    require(type(fill_value) in kinds)
    return zeros(size, dtype=dtype or kinds[type(fill_value)], **where)


def new_zeros(tensor: torch.Tensor, size: Sizes, *, dtype: Any = None, **where: Any) -> torch.Tensor:
    """`new_zeros`, `new_ones` and others: a dtype of another tensor."""
    return zeros(size, dtype=dtype or tensor.dtype, **where)


def new_full(tensor: torch.Tensor, size: Sizes, fill_value: Any, *, dtype: Any = None, **where: Any) -> torch.Tensor:
    """A tensor of one value, and of the dtype of another tensor."""
    return zeros(size, dtype=dtype or tensor.dtype, **where)


def zeros_like(
    tensor: torch.Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    """`zeros_like`, `ones_like` and others."""
    _on_cpu(layout, device, pin_memory)
    require(memory_format in (None, torch.preserve_format))
    return like(tensor, _known(dtype or tensor.dtype))


def full_like(tensor: torch.Tensor, fill_value: Any, **how: Any) -> torch.Tensor:
    """A tensor of one value, with the shape and dtype of another tensor."""
    return zeros_like(tensor, **how)


def numbers(
    *ends: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    """`arange`."""
    start, end, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    require(all(type(each) is int for each in (start, end, step)) and step > 0 and end >= start)
    _on_cpu(layout, device, pin_memory)
    require(dtype is None or dtype in DTYPES - {torch.bool})
    return new((ceil((end - start) / step),), dtype or torch.int64)


def to_dtype(
    tensor: torch.Tensor, dtype: Any, non_blocking: bool = False, copy: bool = False, memory_format: Any = None
) -> torch.Tensor:
    """A cast, or the tensor itself."""
    require(dtype in DTYPES and memory_format in (None, torch.preserve_format))
    if dtype == tensor.dtype and not copy:
        return tensor
    made = like(tensor, dtype)
    require(min(tensor.shape, default=0) > 1 or made.stride() == tensor.stride())  # others are sometimes kept
    return made


def to_device(tensor: torch.Tensor, device: Any, dtype: Any, *how: Any) -> torch.Tensor:
    """A cast; the device is always the cpu."""
    require(device == CPU)
    return to_dtype(tensor, dtype, *how)


def to_layout(
    tensor: torch.Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    """A cast, whose other options change nothing."""
    _on_cpu(layout, device, pin_memory)
    return to_dtype(tensor, dtype or tensor.dtype, non_blocking, copy, memory_format)


def to_dtype_of(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`type_as`."""
    return to_dtype(tensor, other.dtype)


def assertion(
    tensor: torch.Tensor,
    size: Any = None,
    stride: Any = None,
    dtype: Any = None,
    *,
    device: Any = None,
    layout: Any = None,
) -> None:
    """An assertion about a tensor, which holds."""
    require(size is None and stride is None and dtype in (None, tensor.dtype))
    _on_cpu(layout, device, None)


def _known(dtype: torch.dtype) -> torch.dtype:
    require(dtype in DTYPES)
    return dtype
