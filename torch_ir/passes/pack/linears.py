"""Linear layers with weights laid out once: packed for oneDNN, or contiguous along the longer side.

oneDNN's operator fuses an activation. A following sum stays separate: the fused form was measured to be slower than
both. For one float32 row, packing does not pay: the time goes into reading the weight, which is fastest in long runs.
"""

from __future__ import annotations

import math

from torch_ir.analysis.shapes.permutations import PERMUTE
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.pack.convolutions import CUT, activation_of, is_computed, packed_bias
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.passes.weights.affine import LINEAR, obstacle
from torch_ir.rewrite import CUTS, Builder, op, rule

PACKED = "mkldnn._linear_pointwise.default"
_CURVES = ("gelu", "silu", "sigmoid", "tanh", "hardswish", "leaky_relu")
_CUTS = ("relu", "relu6", "hardtanh", "hardsigmoid", "clamp", "clamp_min")
_layer = op(PACKED).when(attr="none").read_once().named("layer")


@rule(op(LINEAR, input="x", weight="weight", bias="bias"))
def pack_linear(g: Builder, node: OpNode, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> object:
    """linear(x, w, b)  ->  _linear_pointwise(x, _reorder_linear_weight(w), b),  except for one row of float32"""
    if _is_row(x) or g.is_weight(x):
        return None
    if why := _objection(g, x, weight, bias):
        return why
    packed = g.op("mkldnn._reorder_linear_weight.default", self=weight, batch_size=_rows(x))
    return g.op(PACKED, X=x, W=packed, B=packed_bias(g, bias), attr="none", scalars=[], algorithm="")


@rule(op(LINEAR, input="x", weight="weight", bias="bias"))
def turn_weight(g: Builder, node: OpNode, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> object:
    """linear(x, w, b)  ->  linear(x, w, b),  for one row x, with a weight that is contiguous along its longer side"""
    if not _is_row(x) or g.is_weight(x):
        return None
    if why := _objection(g, x, weight, bias):
        return why
    makes, reads = (int(size) for size in weight.shape)
    if 1 in (makes, reads) or weight.stride == ((1, makes) if makes >= reads else None):
        return None
    if makes < reads:
        return g.like(node, weight=g.op("aten.contiguous.default", self=weight))
    columns = g.op("aten.contiguous.default", self=g.op(PERMUTE, self=weight, dims=[1, 0]))
    return g.like(node, weight=g.op(PERMUTE, self=columns, dims=[1, 0]))


@rule(op(*(f"aten.{name}" for name in (*_CURVES, *_CUTS)), self=_layer))
def activation_into_linear(g: Builder, node: OpNode, layer: OpNode) -> object:
    """gelu(_linear_pointwise(x, w, b))  ->  _linear_pointwise(x, w, b, attr="gelu")"""
    found = activation_of(node)
    if found is None:
        return None
    attr, scalars, algorithm = found
    if attr == "gelu":
        g.may_change(CUTS)
    elif attr in CUT:
        return f"oneDNN's {attr} turns NaN into a number"
    return g.like(layer, attr=attr, scalars=scalars, algorithm=algorithm)


def _objection(g: Builder, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> str:
    """Return why the weight of a linear layer keeps its layout, or ""."""
    if not g.is_home("cpu") or x.placement is not None or weight.placement is not None:
        return "weights are laid out for CPUs only"
    if not is_computed(x.dtype) or weight.dtype != x.dtype:
        return f"oneDNN does not compute linear layers of {x.dtype} on this CPU"
    if len(weight.shape) != 2 or not weight.is_static or 0 in weight.shape:
        return "its weight is not a matrix of static sizes"
    if bias is not None and (bias.dtype != x.dtype or bias.shape != weight.shape[:1]):
        return "its bias does not match the dtype and size of its output"
    return obstacle(g.is_weight, weight, bias)


def _is_row(x: TensorMeta) -> bool:
    return x.dtype == "float32" and _rows(x) == 1


def _rows(x: TensorMeta) -> int | None:
    """Return the number of rows a layer multiplies, if known; the weight is packed for it but accepts any."""
    sizes = [size for size in x.shape[:-1] if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(x.shape) - 1 else None


pack_linears = rule_pass(
    "pack-linears",
    "Lay out weights of linear layers once for this CPU: packed for oneDNN, or contiguous along the longer side.",
    [pack_linear, turn_weight, activation_into_linear],
    may_raise=["bytes", "peak"],
)
