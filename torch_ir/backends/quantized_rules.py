"""Rewrites of `quantized_decomposed` operators into arithmetic, for runtimes that lack them."""

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
    shape = [-1 if dim == axis else 1 for dim in range(input.dim())]
    values = input.float()
    if zero_points is not None:
        values = values - zero_points.float().reshape(shape)
    return (values * scales.reshape(shape)).to(out_dtype or torch.float32)


_RULES: dict[str, Rule] = {
    "convert_element_type.no_fuse": _convert,
    "quantize_per_token.default": _quantize_per_token,
    "dequantize_per_token.default": _dequantize_per_token,
    "quantize_per_tensor.tensor": _quantize_per_tensor,
    "dequantize_per_tensor.tensor": _dequantize_per_tensor,
    "dequantize_per_channel.default": _dequantize_per_channel,
    "dequantize_per_channel_group.default": _dequantize_per_group,
}
QUANTIZED: dict[str, Rule] = {f"quantized_decomposed.{name}": rule for name, rule in _RULES.items()}
