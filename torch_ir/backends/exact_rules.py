"""Rewrites of operators that a runtime computes differently from eager into operators that it computes correctly.

Each rule is a function of the operator's arguments. It is traced at concrete sizes and never runs on values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from operator import mul
from typing import Any

import torch
from torch import Tensor

from torch_ir.ops.own_decompositions import GROUPED, histc
from torch_ir.passes.decompose.quantized_rules import QUANTIZED
from torch_ir.passes.decompose.rewriting import Rule
from torch_ir.targets.onnx.exact_operators import NORMS, SOFTMAX, attention, masked_attention, scatter_mean

_aten = torch.ops.aten


# -- attention and norms ----------------------------------------------------------------------------------------------


def ungrouped_attention(
    query: Tensor, key: Tensor, value: Tensor, *given: Any, enable_gqa: bool = False, **options: Any
) -> Any:
    """Variant for a runtime that needs as many heads of keys and values as of queries."""
    if not enable_gqa:
        return attention(query, key, value, *given, **options)
    key, value = (_repeated(each, query.shape[-3] // each.shape[-3]) for each in (key, value))
    return masked_attention(query, key, value, *given, **options)


def _repeated(heads: Tensor, count: int) -> Tensor:
    shape = [-1] * (heads.dim() + 1)
    shape[-3] = count
    return heads.unsqueeze(-3).expand(shape).flatten(-4, -3)


def variance(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """Return the variance with its correction, which OpenVINO ignores."""
    dims = list(dim) if dim else list(range(self.dim()))
    degrees = prod(self.shape[one] for one in dims) - (1 if correction is None else correction)
    gaps = (self - self.mean(dims, keepdim=True)).square()
    return gaps.sum(dims, keepdim=keepdim) / degrees if degrees > 0 else NotImplemented


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
    return NotImplemented if index >= 0 else _aten.select_scatter.default(self, src, dim, self.shape[dim] + index)


def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Replace negative bounds."""
    bounds = [max(0, one + self.shape[dim]) if one is not None and one < 0 else one for one in (start, end)]
    return NotImplemented if bounds == [start, end] else _aten.slice_scatter.default(self, src, dim, *bounds, step)


def joined_slices(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """Write nothing in place: IREE overwrites elements of a slice of `self` in `src` that it has yet to read."""
    dim, size = dim % self.dim(), self.shape[dim]
    start, end, _ = slice(start, end).indices(size)
    end = max(start, end)
    src = src.to(self.dtype)
    if step != 1:
        spread = src.unsqueeze(dim + 1).expand(*src.shape[: dim + 1], step, *src.shape[dim + 1 :]).flatten(dim, dim + 1)
        is_new = (torch.arange(end - start, device=self.device) % step == 0).reshape(-1, *[1] * (self.dim() - dim - 1))
        src = torch.where(is_new, spread.narrow(dim, 0, end - start), self.narrow(dim, start, end - start))
    return torch.cat([self.narrow(dim, 0, start), src, self.narrow(dim, end, size - end)], dim)


def joined_elements(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """Write nothing in place, like `joined_slices`."""
    index %= self.shape[dim]
    return joined_slices(self, src.unsqueeze(dim), dim, index, index + 1)


# -- integers ---------------------------------------------------------------------------------------------------------


def _widened(operator: Any) -> Rule:
    """Return a rule that converts the input to the result dtype first, in which eager accumulates small integers."""

    def rule(self: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
        wide = dtype or torch.int64
        is_wide = self.is_floating_point() or self.is_complex() or self.dtype == wide
        return NotImplemented if is_wide else operator(self.to(wide), *args, dtype=wide)

    return rule


def power(self: Tensor, exponent: Any) -> Any:
    """Multiply small powers of integers, which OpenVINO computes in float32."""
    if self.is_floating_point() or type(exponent) is not int or not 2 <= exponent <= 8:
        return NotImplemented
    return reduce(mul, [self] * exponent)


def softshrink(self: Tensor, lambd: float = 0.5) -> Tensor:
    """Preserve NaN."""
    return torch.where(self > lambd, self - lambd, torch.where(self < -lambd, self + lambd, self * 0))


def squeeze(self: Tensor, dim: int) -> Any:
    """Keep a dimension of a size other than 1; OpenVINO drops its elements."""
    return NotImplemented if self.shape[dim] == 1 else self.reshape(self.shape)


def empty_like(self: Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Fill with zeros; OpenVINO has no memory without values."""
    return torch.zeros_like(self, dtype=dtype)


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
    return side.to(torch.int32).to(kind) if isinstance(side, Tensor) and side.dtype == torch.uint8 else side


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
OPENVINO: dict[str, Rule] = {
    **GROUPED,
    "aten.histc.default": histc,
    "aten.empty_like.default": empty_like,
    "aten.squeeze.dim": squeeze,
    "aten.pow.Tensor_Scalar": power,
    "aten.square.default": partial(power, exponent=2),
    **NORMS,
    **SPREAD,
    "aten.scaled_dot_product_attention.default": ungrouped_attention,
    **SOFTMAX,
    **WIDENED,
    **INDICES,
    **QUANTIZED,
    "aten.scatter_reduce.two": scatter_mean,
}
IREE: dict[str, Rule] = {
    **BYTES,
    **SOFTMAX,
    **WIDENED,
    **INDICES,
    "aten.slice_scatter.default": joined_slices,
    "aten.select_scatter.default": joined_elements,
    **NORMS,
    "aten.softshrink.default": softshrink,
    "aten.scaled_dot_product_attention.default": attention,
}
