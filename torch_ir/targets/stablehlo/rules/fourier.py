"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim
from torch_ir.targets.stablehlo.element_types import REALS
from torch_ir.targets.stablehlo.operations import Builder, Value, integers
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made
from torch_ir.targets.stablehlo.rules.rule_table import axis, lowers

_MOST = 3  # dimensions of one transform


def _transform(hlo: Builder, value: Value, dims: Sequence[int], kind: str, sizes: Sequence[Dim], dtype: str) -> Value:
    """Transform dimensions, which are made the last ones; `sizes` are their lengths in the real domain."""
    rank = len(value.shape)
    chosen = [axis(dim, rank) for dim in dims]
    if len(chosen) > _MOST or any(isinstance(size, str) for size in sizes):
        raise ConversionError("it transforms more than three dimensions, or dynamic ones")
    order = [*(at for at in range(rank) if at not in chosen), *chosen]
    moved = hlo.transpose(value, order)
    last = {"RFFT": int(sizes[-1]) // 2 + 1, "IRFFT": int(sizes[-1])}.get(kind, moved.shape[-1])
    lengths = integers([int(size) for size in sizes])
    attrs = f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {lengths}"
    made = hlo.emit("fft", [moved], (*moved.shape[:-1], last), dtype, attrs)
    return hlo.transpose(made, [order.index(at) for at in range(rank)])


def _scaled(hlo: Builder, value: Value, normalization: int, count: int, *, inverse: bool) -> Value:
    """Apply torch's normalisation (0 none, 1 by the root, 2 by the count); StableHLO's inverses divide by the count."""
    factor = [1.0, 1 / math.sqrt(count), 1 / count][normalization] * (count if inverse else 1)
    if factor == 1:
        return value
    if value.dtype in REALS:
        factors = hlo.convert(hlo.full(factor, (), REALS[value.dtype]), value.dtype)
        return hlo.pointwise("multiply", value, factors)
    return hlo.pointwise("multiply", value, hlo.like(value, factor))


def _lengths(shape: Sequence[Dim], dims: Sequence[int]) -> list[Dim]:
    return [shape[axis(dim, len(shape))] for dim in dims]


@lowers("aten._fft_c2c.default")
def complex_transform(
    hlo: Builder, made: Made, self: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    sizes = _lengths(self.shape, dim)
    found = _transform(hlo, self, dim, "FFT" if forward else "IFFT", sizes, self.dtype)
    return _scaled(hlo, found, normalization, math.prod(map(int, sizes)), inverse=not forward)


@lowers("aten._fft_r2c.default")
def real_transform(
    hlo: Builder, made: Made, self: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    sizes = _lengths(self.shape, dim)
    if onesided:
        found = _transform(hlo, self, dim, "RFFT", sizes, made[0].dtype)
    else:
        found = _transform(hlo, hlo.convert(self, made[0].dtype), dim, "FFT", sizes, made[0].dtype)
    return _scaled(hlo, found, normalization, math.prod(map(int, sizes)), inverse=False)


@lowers("aten._fft_c2r.default")
def inverse_real_transform(
    hlo: Builder, made: Made, self: Value, dim: Sequence[int], normalization: int, last_dim_size: Dim
) -> Value:
    sizes = [*_lengths(self.shape, dim)[:-1], last_dim_size]
    found = _transform(hlo, self, dim, "IRFFT", sizes, made[0].dtype)
    return _scaled(hlo, found, normalization, math.prod(map(int, sizes)), inverse=True)
