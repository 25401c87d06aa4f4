"""ONNX for the operators of `quantized_decomposed`, which torch's exporter lacks.

Per tensor and per channel, they become QuantizeLinear and DequantizeLinear, which runtimes replace by integer kernels;
the others are written as arithmetic. QuantizeLinear divides by a scale where torch multiplies by its inverse, so that a
value next to the middle of two integers may be rounded to the other one. As in torch, zero points are added before
rounding per token and per group, and after it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from onnxscript import opset18
from onnxscript.onnx_types import TensorType

op: Any = opset18  # its annotations do not cover traced functions
_FLOAT32, _UINT8, _INT8 = 1, 2, 3  # ONNX data types
_WHOLE = {_INT8: (-128, 127), _UINT8: (0, 255)}


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the table for `torch.onnx.export`; empty if torch has not registered the operators."""
    quantized: Any = torch.ops.quantized_decomposed
    if not hasattr(quantized, "quantize_per_tensor"):
        return {}
    return {
        quantized.quantize_per_tensor.default: _quantize_by_numbers,
        quantized.dequantize_per_tensor.default: _dequantize_by_numbers,
        quantized.quantize_per_tensor.tensor: _quantize_by_tensors,
        quantized.dequantize_per_tensor.tensor: _dequantize_by_tensors,
        quantized.quantize_per_channel.default: _quantize_per_channel,
        quantized.dequantize_per_channel.default: _dequantize_per_channel,
        quantized.quantize_per_channel_group.default: _quantize_per_group,
        quantized.dequantize_per_channel_group.default: _dequantize_per_group,
        quantized.quantize_per_token.default: _quantize_per_token,
        quantized.dequantize_per_token.default: _dequantize_by_tensors,
        quantized.convert_element_type.no_fuse: _convert,
    }


def _quantize_by_numbers(
    input: TensorType, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
) -> Any:
    if _WHOLE.get(dtype) != (quant_min, quant_max):
        scaled = op.Mul(op.Cast(input, to=_FLOAT32), _number(1.0 / scale))
        return _bounded(op.Add(op.Round(scaled), _number(float(zero_point))), quant_min, quant_max, dtype)
    return op.QuantizeLinear(op.Cast(input, to=_FLOAT32), _number(scale), _integer(zero_point, dtype))


def _dequantize_by_numbers(
    input: TensorType,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int = _FLOAT32,
) -> Any:
    return _cast(op.DequantizeLinear(input, _number(scale), _integer(zero_point, dtype)), out_dtype)


def _quantize_by_tensors(
    input: TensorType, scale: TensorType, zero_point: TensorType, quant_min: int, quant_max: int, dtype: int
) -> Any:
    scaled = op.Mul(op.Cast(input, to=_FLOAT32), op.Reciprocal(op.Cast(scale, to=_FLOAT32)))
    return _bounded(op.Add(op.Round(scaled), op.Cast(zero_point, to=_FLOAT32)), quant_min, quant_max, dtype)


def _quantize_per_token(
    input: TensorType, scales: TensorType, zero_points: TensorType, quant_min: int, quant_max: int, dtype: int
) -> Any:
    scaled = op.Mul(op.Cast(input, to=_FLOAT32), op.Reciprocal(op.Cast(scales, to=_FLOAT32)))
    return _bounded(op.Round(op.Add(scaled, op.Cast(zero_points, to=_FLOAT32))), quant_min, quant_max, dtype)


def _dequantize_by_tensors(
    input: TensorType,
    scale: TensorType,
    zero_point: TensorType,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int = _FLOAT32,
) -> Any:
    shifted = op.Sub(op.Cast(input, to=_FLOAT32), op.Cast(zero_point, to=_FLOAT32))
    return _cast(op.Mul(shifted, op.Cast(scale, to=_FLOAT32)), out_dtype)


def _quantize_per_channel(
    input: TensorType,
    scales: TensorType,
    zero_points: TensorType,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
) -> Any:
    inverse = op.Reciprocal(_along(scales, axis, input))
    zeros = op.Cast(_along(zero_points, axis, input), to=_FLOAT32)
    scaled = op.Mul(op.Cast(input, to=_FLOAT32), inverse)
    return _bounded(op.Add(op.Round(scaled), zeros), quant_min, quant_max, dtype)


def _dequantize_per_channel(
    input: TensorType,
    scales: TensorType,
    zero_points: Optional[TensorType],  # noqa: UP045  # the exporter reads the annotation
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: int,
    out_dtype: int = _FLOAT32,
) -> Any:
    if zero_points is None:
        return _cast(op.DequantizeLinear(input, scales, axis=axis), out_dtype)
    return _cast(op.DequantizeLinear(input, scales, op.Cast(zero_points, to=dtype), axis=axis), out_dtype)


def _quantize_per_group(
    input: TensorType,
    scales: TensorType,
    zero_points: TensorType,
    quant_min: int,
    quant_max: int,
    dtype: int,
    group_size: int,
) -> Any:
    parts = op.Reshape(op.Cast(input, to=_FLOAT32), op.Constant(value_ints=[-1, group_size]))
    column = op.Constant(value_ints=[-1, 1])
    scaled = op.Mul(parts, op.Reciprocal(op.Reshape(scales, column)))
    zeros = op.Cast(op.Reshape(zero_points, column), to=_FLOAT32)
    return op.Reshape(_bounded(op.Round(op.Add(scaled, zeros)), quant_min, quant_max, dtype), op.Shape(input))


def _dequantize_per_group(
    input: TensorType,
    scales: TensorType,
    zero_points: Optional[TensorType],  # noqa: UP045  # the exporter reads the annotation
    quant_min: int,
    quant_max: int,
    dtype: int,
    group_size: int,
    output_dtype: int = _FLOAT32,
) -> Any:
    column = op.Constant(value_ints=[-1, 1])
    parts = op.Cast(op.Reshape(input, op.Constant(value_ints=[-1, group_size])), to=_FLOAT32)
    if zero_points is not None:
        parts = op.Sub(parts, op.Cast(op.Reshape(zero_points, column), to=_FLOAT32))
    return _cast(op.Reshape(op.Mul(parts, op.Reshape(scales, column)), op.Shape(input)), output_dtype)


def _convert(input: TensorType, dtype: int) -> Any:
    return op.Cast(input, to=dtype)


# -- parts ------------------------------------------------------------------------------------------------------------


def _bounded(values: Any, quant_min: int, quant_max: int, dtype: int) -> Any:
    """Return whole numbers as integers of a range."""
    return op.Cast(op.Clip(values, _number(float(quant_min)), _number(float(quant_max))), to=dtype)


def _along(values: Any, axis: int, input: Any) -> Any:
    """Return one value per channel with the rank of a tensor."""
    shape = [1] * len(input.shape)
    shape[axis] = -1
    return op.Reshape(values, op.Constant(value_ints=shape))


def _number(value: float) -> Any:
    return op.Constant(value_float=value)


def _integer(value: int, dtype: int) -> Any:
    return op.Cast(op.Constant(value_int=value), to=dtype)


def _cast(value: Any, dtype: int) -> Any:
    return value if dtype in (None, -1, _FLOAT32) else op.Cast(value, to=dtype)
