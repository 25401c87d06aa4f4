"""Functions with special treatment in a recording, such as those by which data leaves torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_ir.ops.torch_internals import FakeTensor, unset_fake_temporarily

# Their results depend on the memory layout of a tensor.
ASKING_FOR_LAYOUT = frozenset((torch.Tensor.is_contiguous, torch.Tensor.stride, torch.Tensor.storage_offset))
# They format a tensor for people, not for code.
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
    """Return zeros for a fake tensor; any other tensor unchanged."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    with unset_fake_temporarily():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
