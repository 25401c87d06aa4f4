"""Calls that write, as calls with a functional form: the same values, drawn and stored in the same places.

A training step is recorded below autograd, where dropout fills an empty tensor in place, batch norm updates running
statistics, and optimisers write through `out=`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _fill_mask(tensor: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """Fill a tensor with random zeros and ones, in the order of its memory, as `bernoulli_` does.

    `bernoulli` draws in row-major order, so the tensor is permuted to that order first.
    """
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
    if tensor.is_contiguous() or not tensor.permute(order).is_contiguous():
        return tensor.copy_(torch.bernoulli(tensor, p, generator=generator))
    drawn = torch.bernoulli(tensor.permute(order), p, generator=generator)
    return tensor.copy_(drawn.permute([order.index(dim) for dim in range(tensor.dim())]))


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalise by the statistics of the batch, and update the running ones."""
    if not training or running_mean is None or running_var is None:
        return NotImplemented
    results = _aten._native_batch_norm_legit_functional(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    running_mean.copy_(results[3])
    running_var.copy_(results[4])
    return tuple(results[:3])


def _stored(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the variant of a function that stores its result."""

    def call(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return out.copy_(function(*args, **kwargs))

    return call


# Each returns the result, or NotImplemented for a call that writes nothing.
FUNCTIONAL_CALLS: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli_.float: _fill_mask,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.pow_.Scalar: lambda tensor, exponent: tensor.copy_(torch.pow(tensor, exponent)),
    _aten.maximum.out: _stored(torch.maximum),
    _aten.amax.out: _stored(torch.amax),
}
