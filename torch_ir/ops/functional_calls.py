"""Calls that write, as calls with a functional form: the same values, drawn and stored in the same places.

A training step is recorded below autograd, where dropout fills an empty tensor in place, batch norm updates running
statistics, and optimisers write through `out=`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_ir.ops.effects import updates_statistics
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import DispatchKey, call_kernel

_aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


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


def _whole_batch_norm(x: Tensor, *args: Any) -> Any:
    """Do the same where the operator that contains it is called; it returns no statistics."""
    results = _batch_norm(x, *args[:7]) if x.numel() else NotImplemented
    return results if results is NotImplemented else results[0]


def _instance_norm(*args: Any) -> Any:
    """Normalise by operators that declare what they write: the running statistics."""
    is_updating = updates_statistics(_aten.instance_norm.default, bind(_aten.instance_norm.default, args, {}))
    return call_kernel(_aten.instance_norm.default, _COMPOSITE, *args) if is_updating else NotImplemented


# Each returns the result, or NotImplemented for a call that writes nothing.
UPDATING: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli_.float: _fill_mask,
    _aten.batch_norm.default: _whole_batch_norm,
    _aten.instance_norm.default: _instance_norm,
}
FUNCTIONAL_CALLS: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli_.float: _fill_mask,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.pow_.Scalar: lambda tensor, exponent: tensor.copy_(torch.pow(tensor, exponent)),
    _aten.maximum.out: _stored(torch.maximum),
    _aten.amax.out: _stored(torch.amax),
}
