"""Quantisation: remove quantize(dequantize(q)) with equal parameters."""

from __future__ import annotations

from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import Builder, op, rule

_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_SCALE = ("scale", "zero_point", "quant_min", "quant_max", "dtype")


@rule(op(_QUANTIZE, input=op(_DEQUANTIZE, input=op(_QUANTIZE).named("first")).named("back")))
def quantized_already(g: Builder, node: OpNode, first: OpNode, back: OpNode) -> Any:
    """quantize(dequantize(q))  ->  q,  if q = quantize(x) and all three have the same scale, zero point and range"""
    scales = [[each[name] for name in _SCALE] for each in (first, back, node)]
    if scales[0] != scales[1] or scales[0] != scales[2]:
        return "its quantisation parameters differ"
    made: TensorMeta = first.output
    return made if back.output.dtype in ("float32", "float64") else None


quantization = rule_pass("quantization", "Remove dequantize-quantize pairs with equal parameters.", [quantized_already])
