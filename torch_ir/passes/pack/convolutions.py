"""Convolutions by oneDNN: weights are packed once; bias, sum and activation are computed in the same kernel.

The results are channels-last in memory, and following operators keep that layout. oneDNN's clamping activations (relu,
hardtanh, hardsigmoid) turn NaN into a number, or, in its slower kernels, -inf into NaN. Its GELU returns NaN for
infinity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import CONVOLUTIONS, base_name
from torch_ir.passes.clamp_bounds import bounds_of
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.passes.weights.affine import each, obstacle
from torch_ir.rewrite import CUTS, Builder, op, rule
from torch_ir.rewrite.pattern import either_order

CUT = ("relu", "hardtanh", "hardsigmoid", "gelu")
PACKED = "mkldnn._convolution_pointwise.default"
PACKED_SUM = "mkldnn._convolution_pointwise.binary"
PACKED_TRANSPOSED = "mkldnn._convolution_transpose_pointwise.default"
_TRANSPOSED = "aten.conv_transpose2d.input"
_GEOMETRY = ("padding", "stride", "dilation")
_FEW_PRODUCTS = 2_000_000  # below that, the overhead of a oneDNN call outweighs its faster products
_SAME_NAME = ("relu", "sigmoid", "tanh", "hardswish", "hardsigmoid")
_ACTIVATIONS = tuple(
    f"aten.{name}" for name in (*_SAME_NAME, "relu6", "silu", "leaky_relu", "hardtanh", "clamp", "clamp_min", "gelu")
)
_packed = op(PACKED).when(attr="none").read_once().named("conv")
_packed_transposed = op(PACKED_TRANSPOSED).when(attr="none").read_once().named("conv")
Activation = tuple[str, list[float], str]  # oneDNN's attr, scalars and algorithm


@rule(op(*CONVOLUTIONS))
def pack_convolution(g: Builder, node: OpNode) -> object:
    """conv2d(x, w, b)  ->  _convolution_pointwise(x, packed(w), b)"""
    if g.is_weight(node["input"]):
        return None
    if node.attrs.get("transposed"):
        return "only aten.conv_transpose2d is packed as a transposed convolution"
    if why := objection(g, node):
        return why
    if _is_small(node):
        return "it has so few products that torch is faster than a call of oneDNN"
    return _packed_as(g, node, PACKED, "mkldnn._reorder_convolution_weight.default", _GEOMETRY)


@rule(op(_TRANSPOSED))
def pack_transposed(g: Builder, node: OpNode) -> object:
    """conv_transpose2d(x, w, b)  ->  _convolution_transpose_pointwise(x, packed(w), b)"""
    if g.is_weight(node["input"]):
        return None
    if why := objection(g, node):
        return why
    names = ("output_padding", *_GEOMETRY)
    return _packed_as(g, node, PACKED_TRANSPOSED, "mkldnn._reorder_convolution_transpose_weight.default", names)


@rule(*either_order(op("aten.add.Tensor", self=_packed, other="other", alpha=1)))
def sum_into_convolution(g: Builder, node: OpNode, conv: OpNode, other: Any) -> object:
    """conv(x) + other  ->  _convolution_pointwise.binary(x, other, "add")"""
    made = conv.output
    if not isinstance(other, TensorMeta) or (other.shape, other.dtype) != (made.shape, made.dtype):
        return None
    same = {name: conv[name] for name in ("X", "W", "B", "padding", "stride", "dilation", "groups")}
    how = {"binary_attr": "add", "alpha": 1, "unary_attr": None, "unary_scalars": [], "unary_algorithm": ""}
    return g.op(PACKED_SUM, other=other, **same, **how)


@rule(op(*_ACTIVATIONS, self=_packed), op(*_ACTIVATIONS, self=_packed_transposed))
def activation_into_convolution(g: Builder, node: OpNode, conv: OpNode) -> object:
    """relu(conv(x))  ->  _convolution_pointwise(x, attr="relu")"""
    found = activation_of(node)
    if found is None or node.output.dtype != conv.output.dtype:
        return None
    attr, scalars, algorithm = found
    if attr in CUT:
        g.may_change(CUTS)
    return g.like(conv, attr=attr, scalars=scalars, algorithm=algorithm)


@rule(op(*_ACTIVATIONS, self=op(PACKED_SUM).when(unary_attr=None).read_once().named("conv")))
def activation_into_sum(g: Builder, node: OpNode, conv: OpNode) -> object:
    """relu(conv(x) + other)  ->  _convolution_pointwise.binary(x, other, "add", unary_attr="relu")"""
    found = activation_of(node)
    if found is None or found[0] != "relu":
        return found and "after a sum, oneDNN fuses only relu"
    g.may_change(CUTS)
    return g.like(conv, unary_attr="relu")


def activation_of(node: OpNode) -> Activation | None:
    """Return an activation as oneDNN's operators take it, or None if there is no equivalent."""
    name = base_name(node.op_type).removeprefix("aten.")
    if name in _SAME_NAME:
        return name, [], ""
    if name == "gelu":
        return "gelu", [], node["approximate"]
    if name in ("silu", "leaky_relu"):
        return ("swish", [], "") if name == "silu" else ("leaky_relu", [float(node["negative_slope"])], "")
    bounds: tuple[Any, Any] = bounds_of(node) or (None, None)
    low, high = bounds
    if low == 0 and high is None:
        return "relu", [], ""
    are_numbers = all(isinstance(bound, (int, float)) for bound in (low, high))
    return ("hardtanh", [float(low), float(high)], "") if are_numbers and low <= high else None


def objection(g: Builder, node: OpNode) -> str:
    """Return why oneDNN cannot compute a convolution, or ""."""
    x, weight = node["input"], node["weight"]
    if not g.is_home("cpu") or x.placement is not None or weight.placement is not None:
        return "oneDNN packs weights for CPUs only"
    if not is_computed(x.dtype) or weight.dtype != x.dtype:
        return f"oneDNN does not compute convolutions of {x.dtype} on this CPU"
    if len(weight.shape) not in (4, 5) or len(x.shape) != len(weight.shape):
        return "oneDNN packs batched 2-d and 3-d convolutions only"
    if isinstance(node["padding"], str):
        return f"its padding is {node['padding']!r} rather than numbers"
    if not weight.is_static or 0 in weight.shape:
        return "its weight has symbolic or zero sizes"
    return obstacle(g.is_weight, weight, node["bias"])


def _is_small(node: OpNode) -> bool:
    """Whether this is a small 1 x 1 convolution of one image, which torch computes as one matmul."""
    batch, *others = node.output.shape
    reads, *kernel = node["weight"].shape[1:]
    sizes = [size for size in (*others, reads) if isinstance(size, int)]
    is_product = batch == 1 and node["groups"] == 1 and set(kernel) == {1} and node.output.is_static
    return is_product and math.prod(sizes) < _FEW_PRODUCTS


def is_computed(dtype: str) -> bool:
    """Whether oneDNN computes in this dtype on this CPU."""
    return dtype == "float32" or (dtype == "bfloat16" and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _likely_size(x: TensorMeta) -> list[int] | None:
    """Return the input sizes to pack for; other sizes work too, perhaps more slowly."""
    batch, *others = x.shape
    fixed = [size for size in others if isinstance(size, int)]
    return [batch if isinstance(batch, int) else 1, *fixed] if len(fixed) == len(others) else None


def packed_bias(g: Builder, bias: TensorMeta | None) -> TensorMeta | None:
    """Return a contiguous bias: oneDNN ignores its strides."""
    return None if bias is None else g.op("aten.contiguous.default", self=bias)


def _packed_as(g: Builder, node: OpNode, op_type: str, packing: str, names: Sequence[str]) -> TensorMeta:
    """Return the call of oneDNN's operator with a weight packed for the likely input sizes."""
    rank = len(node["weight"].shape) - 2
    geometry = {**{name: each(node[name], rank) for name in names}, "groups": node["groups"]}
    return g.op(
        op_type,
        X=node["input"],
        W=g.op(packing, self=node["weight"], **geometry, input_size=_likely_size(node["input"])),
        B=packed_bias(g, node["bias"]),
        **geometry,
        attr="none",
        scalars=[],
        algorithm="",
    )


pack_convolutions = rule_pass(
    "pack-convolutions",
    "Use oneDNN convolutions with weights packed once for this CPU, fused with the sum and activation that follow.",
    [pack_convolution, pack_transposed, sum_into_convolution, activation_into_convolution, activation_into_sum],
    may_raise=["bytes", "peak"],
)
