"""Rewrites of operators that a runtime computes differently from eager into operators that it computes correctly.

Each rule is a function of the operator's arguments. It is traced at concrete sizes and never runs on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_ir.passes.decompose.quantized_rules import QUANTIZED
from torch_ir.passes.decompose.rewriting import Rule
from torch_ir.targets.stablehlo.torch_rules import log_sigmoid

_aten = torch.ops.aten


# -- attention and norms ----------------------------------------------------------------------------------------------


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *given: Any, **options: Any
) -> Any:
    """Return zeros for fully masked queries, where runtimes return a mean of all values, or NaN."""
    return NotImplemented if attn_mask is None else _attention(query, key, value, attn_mask, *given, **options)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *given: Any, **options: Any
) -> Tensor:
    made: Tensor = _aten.scaled_dot_product_attention.default(query, key, value, attn_mask, *given, **options)
    if attn_mask is None:
        return made
    seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
    return torch.where(seen.any(-1, keepdim=True), made, 0.0)


def ungrouped_attention(
    query: Tensor, key: Tensor, value: Tensor, *given: Any, enable_gqa: bool = False, **options: Any
) -> Any:
    """The same for a runtime that wants as many heads of keys and values as of queries."""
    if not enable_gqa:
        return attention(query, key, value, *given, **options)
    key, value = (_repeated(each, query.shape[-3] // each.shape[-3]) for each in (key, value))
    return _attention(query, key, value, *given, **options)


def _repeated(heads: Tensor, count: int) -> Tensor:
    shape = [-1] * (heads.dim() + 1)
    shape[-3] = count
    return heads.unsqueeze(-3).expand(shape).flatten(-4, -3)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Batch norm with the statistics of the batch."""
    return _normalised(input, weight, bias, eps)[0] if training else NotImplemented


def functional_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm in training, with its saved and updated statistics."""
    if not training:
        return NotImplemented
    made, mean, var = _normalised(input, weight, bias, eps)
    count = input.numel() // input.shape[1]
    new_mean = running_mean * (1 - momentum) + mean * momentum
    new_var = running_var * (1 - momentum) + var * (momentum * count / max(1, count - 1))
    return made, mean, torch.rsqrt(var + eps), new_mean, new_var


def _normalised(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised input, and the mean and biased variance per channel."""
    around = [dim for dim in range(input.dim()) if dim != 1]
    channels = [-1 if dim == 1 else 1 for dim in range(input.dim())]
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    mean = wide.mean(around)
    var = (wide - mean.reshape(channels)).square().mean(around)
    made = (wide - mean.reshape(channels)) * torch.rsqrt(var + eps).reshape(channels)
    if weight is not None:
        made = made * weight.reshape(channels)
    if bias is not None:
        made = made + bias.reshape(channels)
    return made.to(input.dtype), mean, var


def _in_dtype(operator: Any) -> Rule:
    """Return a softmax rule that converts its input to `dtype` first; runtimes convert the result."""

    def rule(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        return NotImplemented if dtype in (None, self.dtype) else operator(self.to(dtype), dim)

    return rule


def variance(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Return the variance with its correction, which OpenVINO ignores."""
    dims = list(dim) if dim else list(range(self.dim()))
    degrees = prod(self.shape[one] for one in dims) - (1 if correction is None else correction)
    if degrees <= 0:
        return NotImplemented
    gaps = (self - self.mean(dims, keepdim=True)).square()
    return gaps.sum(dims, keepdim=keepdim) / degrees


def _spread(of: Any) -> dict[str, Rule]:
    """Return the rules for the overloads of `var` or `std`."""

    def by_correction(self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        return of(variance(self, dim, correction=correction, keepdim=keepdim))

    def by_dim(self: Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Any:
        return of(variance(self, dim, correction=float(unbiased), keepdim=keepdim))

    def whole(self: Tensor, unbiased: bool = True) -> Any:
        return of(variance(self, correction=float(unbiased)))

    return {"correction": by_correction, "dim": by_dim, "default": whole}


def _root(value: Any) -> Any:
    return value if value is NotImplemented else value.sqrt()


def _by_divisor(operator: Any, dims: int) -> Rule:
    """Return a rule for average pooling with `divisor_override`, which ONNX lacks."""

    def rule(
        self: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is None or ceil_mode:
            return NotImplemented
        area = prod(kernel_size) if len(kernel_size) > 1 else kernel_size[0] ** dims
        return operator(self, kernel_size, stride, padding, False, True) * (area / divisor_override)

    return rule


# -- losses and scatters ----------------------------------------------------------------------------------------------


def cross_entropy(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Cross entropy with smoothed labels, for class indices."""
    if label_smoothing == 0.0 or target.is_floating_point():
        return NotImplemented
    channel = 1 if self.dim() > 1 else 0
    logs = torch.log_softmax(self, channel)
    hard = _aten.nll_loss_nd.default(logs, target, weight, reduction, ignore_index)
    kept = target != ignore_index
    shape = [-1 if dim == channel else 1 for dim in range(self.dim())]
    spread = -(logs if weight is None else logs * weight.reshape(shape)).sum(channel)
    spread = torch.where(kept, spread, 0.0)
    if reduction == 1:
        if weight is None:
            count = kept.sum().to(self.dtype)
        else:
            count = torch.where(kept, weight[torch.where(kept, target, 0)], 0.0).sum()
        spread = spread.sum() / count
    elif reduction == 2:
        spread = spread.sum()
    smooth = label_smoothing / self.shape[channel]
    return (1 - label_smoothing) * hard + smooth * spread


def scatter_mean(self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """Compute a mean as a sum and a count."""
    if reduce != "mean" or not self.is_floating_point():
        return NotImplemented
    part = src[tuple(slice(0, size) for size in index.shape)]
    start, counts = self, torch.ones_like(self)
    if not include_self:
        is_met = torch.zeros_like(self).scatter(dim, index, torch.ones_like(part)) > 0
        start, counts = torch.where(is_met, 0.0, self), torch.where(is_met, 0.0, counts)
    total = start.scatter_add(dim, index, part)
    return total / counts.scatter_add(dim, index, torch.ones_like(part))


# -- indices ----------------------------------------------------------------------------------------------------------


def _by_indices(operator: Any) -> Rule:
    """Return a rule that replaces negative indices; masks stay as they are."""

    def rule(self: Tensor, indices: Sequence[Tensor | None], *args: Any, **options: Any) -> Any:
        if any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices):
            return NotImplemented
        counted = [
            None if one is None else torch.where(one < 0, one + size, one)
            for one, size in zip(indices, self.shape, strict=False)
        ]
        return operator(self, counted, *args, **options)

    return rule


def select(self: Tensor, dim: int, index: int) -> Any:
    """Replace a negative index."""
    return NotImplemented if index >= 0 else _aten.select.int(self, dim, self.shape[dim] + index)


def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Any:
    """Replace a negative index."""
    if index >= 0:
        return NotImplemented
    return _aten.select_scatter.default(self, src, dim, self.shape[dim] + index)


def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Replace negative bounds."""
    size = self.shape[dim]
    if (start or 0) >= 0 and (end is None or end >= 0):
        return NotImplemented
    low = max(0, start + size) if start is not None and start < 0 else start
    high = max(0, end + size) if end is not None and end < 0 else end
    return _aten.slice_scatter.default(self, src, dim, low, high, step)


# -- integers ---------------------------------------------------------------------------------------------------------


def _widened(operator: Any) -> Rule:
    """Return a rule that converts the input to the result dtype first, in which eager accumulates small integers."""

    def rule(self: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
        if self.is_floating_point() or self.is_complex():
            return NotImplemented
        wide = dtype or torch.int64
        return NotImplemented if self.dtype == wide else operator(self.to(wide), *args, dtype=wide)

    return rule


def power(self: Tensor, exponent: Any) -> Any:
    """Multiply small powers of integers, which OpenVINO computes in float32."""
    if self.is_floating_point() or type(exponent) is not int or not 2 <= exponent <= 8:
        return NotImplemented
    made = self
    for _ in range(exponent - 1):
        made = made * self
    return made


def square(self: Tensor) -> Any:
    """Multiply integers, likewise."""
    return power(self, 2)


def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """Preserve NaN."""
    return torch.where(self > lambd, self - lambd, torch.where(self < -lambd, self + lambd, self * 0))


def squeeze(self: Tensor, dim: int) -> Any:
    """Keep a dimension of a size other than 1; OpenVINO drops its elements."""
    return NotImplemented if self.shape[dim] == 1 else self.reshape(self.shape)


def _unsigned(operator: Any) -> Rule:
    """Return a rule that converts uint8 operands to float: IREE treats them as signed here."""

    def rule(self: Any, other: Any, **options: Any) -> Any:
        kind = torch.result_type(self, other)
        kind = kind if kind.is_floating_point else torch.get_default_dtype() if operator is _aten.div.Tensor else kind
        sides = [_plain(side, kind) for side in (self, other)]
        is_changed = any(one is not side for one, side in zip(sides, (self, other), strict=True))
        return operator(*sides, **options) if kind.is_floating_point and is_changed else NotImplemented

    return rule


def _plain(side: Any, kind: torch.dtype) -> Any:
    is_byte = isinstance(side, Tensor) and side.dtype == torch.uint8
    return side.to(torch.int32).to(kind) if is_byte else side


BYTES: dict[str, Rule] = {
    f"aten.{name}.Tensor": _unsigned(getattr(_aten, name).Tensor) for name in ("add", "sub", "mul", "div")
}
WIDENED: dict[str, Rule] = {
    str(operator): _widened(operator)
    for operator in (
        _aten.cumsum.default, _aten.cumprod.default, _aten.prod.default, _aten.prod.dim_int, _aten.sum.default,
        _aten.sum.dim_IntList,
    )
}  # fmt: skip
NORMS: dict[str, Rule] = {
    "aten.batch_norm.default": batch_norm,
    "aten._native_batch_norm_legit_functional.default": functional_batch_norm,
}
INDICES: dict[str, Rule] = {
    "aten.index.Tensor": _by_indices(_aten.index.Tensor),
    "aten.index_put.default": _by_indices(_aten.index_put.default),
    "aten.select.int": select,
    "aten.select_scatter.default": select_scatter,
    "aten.slice_scatter.default": slice_scatter,
}
SPREAD: dict[str, Rule] = {
    **{f"aten.var.{overload}": rule for overload, rule in _spread(lambda value: value).items()},
    **{f"aten.std.{overload}": rule for overload, rule in _spread(_root).items()},
}
SOFTMAX: dict[str, Rule] = {
    "aten.softmax.int": _in_dtype(_aten.softmax.int),
    "aten.log_softmax.int": _in_dtype(_aten.log_softmax.int),
}
ONNXRUNTIME: dict[str, Rule] = {
    "aten.scaled_dot_product_attention.default": attention,
    **SOFTMAX,
    **NORMS,
    "aten.cross_entropy_loss.default": cross_entropy,
    "aten.log_sigmoid.default": log_sigmoid,
    "aten.avg_pool2d.default": _by_divisor(_aten.avg_pool2d.default, 2),
    "aten.avg_pool3d.default": _by_divisor(_aten.avg_pool3d.default, 3),
    "aten.scatter_reduce.two": scatter_mean,
}
OPENVINO: dict[str, Rule] = {
    "aten.squeeze.dim": squeeze,
    "aten.pow.Tensor_Scalar": power,
    "aten.square.default": square,
    **NORMS,
    **SPREAD,
    "aten.scaled_dot_product_attention.default": ungrouped_attention,
    **SOFTMAX,
    **WIDENED,
    **INDICES,
    **QUANTIZED,
    "aten.scatter_reduce.two": scatter_mean,
}
IREE: dict[str, Rule] = {**BYTES, **SOFTMAX, **WIDENED, **INDICES, **NORMS, "aten.softshrink.default": softshrink}
