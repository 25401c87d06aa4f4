"""ONNX for the operators of `quantized_decomposed` that become QuantizeLinear and DequantizeLinear.

Runtimes replace these by integer kernels; the other operators are rewritten as arithmetic before. QuantizeLinear
divides by a scale where torch multiplies by its inverse, so that a value next to the middle of two integers may be
rounded to the other one.
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
        quantized.dequantize_per_channel.default: _dequantize_per_channel,
    }


def _quantize_by_numbers(
    input: TensorType, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: int
) -> Any:
    if _WHOLE.get(dtype) != (quant_min, quant_max):
        scaled = op.Mul(op.Cast(input, to=_FLOAT32), _number(1.0 / scale))
        shifted = op.Add(op.Round(scaled), _number(float(zero_point)))
        return op.Cast(op.Clip(shifted, _number(float(quant_min)), _number(float(quant_max))), to=dtype)
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


# -- parts ------------------------------------------------------------------------------------------------------------


def _number(value: float) -> Any:
    return op.Constant(value_float=value)


def _integer(value: int, dtype: int) -> Any:
    return op.Cast(op.Constant(value_int=value), to=dtype)


def _cast(value: Any, dtype: int) -> Any:
    return value if dtype in (None, -1, _FLOAT32) else op.Cast(value, to=dtype)
