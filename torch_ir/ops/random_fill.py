"""The mask of dropout as a functional operator with the values that the in-place one draws.

Dropout fills an empty tensor with `bernoulli_`, in the order of its memory. `bernoulli` returns a tensor in row-major
order, so with the same seed its elements are the same only if the tensor is permuted to that order first.
"""

from __future__ import annotations

from typing import Any

import torch

BERNOULLI_ = torch.ops.aten.bernoulli_.float


def fill_mask(tensor: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    """Fill a tensor with random zeros and ones, by operators that have a functional form."""
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    if tensor.is_contiguous() or not tensor.permute(order).is_contiguous():
        return tensor.copy_(torch.bernoulli(tensor, p, generator=generator))
    drawn = torch.bernoulli(tensor.permute(order), p, generator=generator)
    return tensor.copy_(drawn.permute([order.index(dim) for dim in range(tensor.dim())]))
