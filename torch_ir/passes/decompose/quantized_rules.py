"""Rewrites of `quantized_decomposed` operators into arithmetic, for runtimes and formats that lack them.

As in torch, zero points are added before rounding per token and per group, and after it otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_ir.passes.decompose.rewriting import Rule


def _convert(input: Tensor, dtype: torch.dtype) -> Tensor:
    return input.to(dtype)


def _quantize_per_token(
    input: Tensor, scales: Tensor, zero_points: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    return torch.clamp(torch.round(input * (1.0 / scales) + zero_points), quant_min, quant_max).to(dtype)


def _dequantize_per_token(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> Tensor:
    return ((input.float() - zero_points.float()) * scales).to(output_dtype)


def _quantize_per_tensor(
    input: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    scaled = torch.round(input.float() * (1.0 / scale.float()))
    return torch.clamp(scaled + zero_point.float(), quant_min, quant_max).to(dtype)


def _dequantize_per_tensor(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return ((input.float() - zero_point.float()) * scale.float()).to(out_dtype or torch.float32)


def _quantize_per_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
) -> Tensor:
    parts = input.float().reshape(-1, group_size) * (1.0 / scales.reshape(-1, 1))
    whole = torch.round(parts + zero_points.reshape(-1, 1))
    return torch.clamp(whole, quant_min, quant_max).to(dtype).reshape(input.shape)


def _dequantize_per_group(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> Tensor:
    parts = input.float().reshape(-1, group_size)
    if zero_points is not None:
        parts = parts - zero_points.float().reshape(-1, 1)
    return (parts * scales.reshape(-1, 1)).reshape(input.shape).to(output_dtype)


def _quantize_per_channel(
    input: Tensor, scales: Tensor, zero_points: Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> Tensor:
    scaled = torch.round(input.float() * (1.0 / _along(scales, axis, input)))
    return torch.clamp(scaled + _along(zero_points, axis, input), quant_min, quant_max).to(dtype)


def _dequantize_per_channel(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    values = input.float()
    if zero_points is not None:
        values = values - _along(zero_points, axis, input).float()
    return (values * _along(scales, axis, input)).to(out_dtype or torch.float32)


def _along(values: Tensor, axis: int, input: Tensor) -> Tensor:
    """Return one value per channel with the rank of a tensor."""
    return values.reshape([-1 if dim == axis % input.dim() else 1 for dim in range(input.dim())])


_RULES: dict[str, Rule] = {
    "convert_element_type.no_fuse": _convert,
    "quantize_per_token.default": _quantize_per_token,
    "dequantize_per_token.default": _dequantize_per_token,
    "quantize_per_tensor.tensor": _quantize_per_tensor,
    "dequantize_per_tensor.tensor": _dequantize_per_tensor,
    "quantize_per_channel.default": _quantize_per_channel,
    "dequantize_per_channel.default": _dequantize_per_channel,
    "quantize_per_channel_group.default": _quantize_per_group,
    "dequantize_per_channel_group.default": _dequantize_per_group,
}
QUANTIZED: dict[str, Rule] = {f"quantized_decomposed.{name}": rule for name, rule in _RULES.items()}
