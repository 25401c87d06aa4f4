"""Functions that a recording must know: doors out of torch, through which values or memory reach code outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_ir.ops.torch_internals import FakeTensor, unset_fake_temporarily

# What they answer depends on how a tensor lies in memory.
ASKING_FOR_LAYOUT = frozenset((torch.Tensor.is_contiguous, torch.Tensor.stride, torch.Tensor.storage_offset))
# They show a tensor to people, not to code.
SHOWING = frozenset((torch.Tensor.__repr__, torch.Tensor.__format__))
LEAVING: frozenset[Callable[..., Any]] = frozenset(
    (
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.tolist,
        torch.Tensor.data_ptr,
        torch.Tensor.apply_,
        torch.Tensor.map_,
        torch.Tensor.storage,
        torch.Tensor.untyped_storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.__reduce_ex__,
    )
)


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros in the place of a tensor that has no values."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    with unset_fake_temporarily():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
