"""Linear layers of a few float32 rows with quantised weights, as torch's operators for CPUs that read packed integers.

before   w = dequantize_per_channel_group(q, s);  y = linear(x, w)
after    p = _convert_weight_to_int4pack_for_cpu(q + 8);  y = _weight_int4pack_mm_for_cpu(x, p, s)

The weights are packed once. Restoring them in float in every run takes longer than the product, where it has few rows.
"""

from __future__ import annotations

import math
from typing import Any

from torch_ir.ir import IR, Dtype, OpNode, TensorMeta
from torch_ir.passes.pass_registry import apply_once
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.builder import arguments_of

_LINEAR = "aten.linear.default"
_Q = "quantized_decomposed."
_CONVERT = f"{_Q}convert_element_type.no_fuse"
_GROUPS = (32, 64, 128, 256)  # sizes that torch's kernel takes
_MOST_ROWS = 8
_ROW_BLOCK = 16  # of the weight
_DEEPEST = 16  # operators that unpack integers; quantize makes eight


def with_packed_products(ir: IR) -> IR:
    """Return a copy in which such layers read packed weights."""
    copy = ir.clone()
    apply_once(copy, _groups, _channels)
    return copy.check()


@rule(op(_LINEAR, input="x", weight=op(f"{_Q}dequantize_per_channel_group.default").named("restored"), bias="bias"))
def _groups(g: Builder, node: OpNode, x: TensorMeta, restored: OpNode, bias: TensorMeta | None) -> object:
    """linear(x, dequantize_per_channel_group(q, s))  ->  _weight_int4pack_mm_for_cpu(x, pack(q + 8), s)"""
    if why := _objection(g, node, x, restored):
        return why
    group, scales = restored["group_size"], restored["scales"]
    is_int4 = restored["quant_min"] >= -8 and restored["quant_max"] <= 7
    if not is_int4 or group not in _GROUPS or node.output.shape[-1] % _ROW_BLOCK:
        return "torch has no kernel for these integers and groups"
    values = _once(g, restored["input"], _DEEPEST)
    if values is None:
        return "its integers are not computed from weights"
    shifted = g.op("aten.add.Scalar", self=g.op("aten.to.dtype", self=values, dtype=Dtype("int32")), other=8)
    packed = g.op("aten._convert_weight_to_int4pack_for_cpu.default", self=shifted, innerKTiles=1)
    zeros = g.op("aten.zeros_like.default", self=scales)
    both = g.op(
        "aten.permute.default", self=g.op("aten.stack.default", tensors=[scales, zeros], dim=-1), dims=[1, 0, 2]
    )
    both = g.op("aten.contiguous.default", self=both)
    product = "aten._weight_int4pack_mm_for_cpu.default"
    made = g.op(product, self=_rows(g, x), mat2=packed, qGroupSize=group, qScaleAndZeros=both)
    return _finished(g, node, made, bias)


@rule(op(_LINEAR, input="x", weight=op(f"{_Q}dequantize_per_channel.default").named("restored"), bias="bias"))
def _channels(g: Builder, node: OpNode, x: TensorMeta, restored: OpNode, bias: TensorMeta | None) -> object:
    """linear(x, dequantize_per_channel(q, s))  ->  _weight_int8pack_mm(x, q, s)"""
    if why := _objection(g, node, x, restored):
        return why
    if restored["axis"] != 0 or restored["input"].dtype != "int8" or not g.is_weight(restored["input"]):
        return "its weight is not of int8 with one scale for each row"
    made = g.op("aten._weight_int8pack_mm.default", self=_rows(g, x), mat2=restored["input"], scales=restored["scales"])
    return _finished(g, node, made, bias)


def _objection(g: Builder, node: OpNode, x: TensorMeta, restored: OpNode) -> str:
    """Return why a layer stays as it is, or ""."""
    if not g.is_home("cpu") or not x.is_static or not node.output.is_static:
        return "it is not on a CPU, or its sizes vary"
    if x.dtype != "float32" or restored.output.dtype != "float32" or restored["scales"].dtype != "float32":
        return "it is not computed in float32"
    if math.prod(map(int, x.shape[:-1])) > _MOST_ROWS:
        return f"it has more than {_MOST_ROWS} rows"
    zeros = restored["zero_points"]
    if not g.is_weight(restored["scales"]) or (zeros is not None and g.scalar_of(zeros) != 0):
        return "its scales are not weights, or its zero points are not zero"
    return ""


def _once(g: Builder, tensor: TensorMeta, depth: int) -> TensorMeta | None:
    """Return the same value computed from weights by operators that run once; None if there is no such value."""
    if g.is_weight(tensor):
        return tensor
    node = tensor.producer
    if node is None or depth == 0:
        return None
    known = {each: _once(g, each, depth - 1) for each in dict.fromkeys(node.inputs)}
    if None in known.values() or len(node.outputs) != 1:
        return None
    given = {name: _replaced(value, known) for name, value in arguments_of(node).items()}
    if node.op_type == _CONVERT:
        return g.op("aten.to.dtype", self=given["input"], dtype=given["dtype"])
    return g.op(node.op_type, **given)


def _replaced(value: Any, known: dict[TensorMeta, TensorMeta | None]) -> Any:
    if isinstance(value, TensorMeta):
        return known[value]
    return [_replaced(item, known) for item in value] if isinstance(value, (list, tuple)) else value


def _rows(g: Builder, x: TensorMeta) -> TensorMeta:
    return g.op("aten.reshape.default", self=x, shape=[-1, x.shape[-1]])


def _finished(g: Builder, node: OpNode, made: TensorMeta, bias: TensorMeta | None) -> TensorMeta:
    """Return the product with the bias, in the shape of the layer's output."""
    made = made if bias is None else g.op("aten.add.Tensor", self=made, other=bias)
    return g.op("aten.reshape.default", self=made, shape=list(node.output.shape))
