"""Convolutions and linear layers: fold a scale and shift of their output or input into their weights.

The new weights are computed by nodes from the old ones, so no values are needed. They are computed in float32 (float64
for float64 weights) and rounded once at the end to the original dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import CONVOLUTIONS, FLOATS, base_name
from torch_ir.rewrite import Builder

LINEAR = "aten.linear.default"
TRANSPOSED = ("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
LAYERS = (LINEAR, *CONVOLUTIONS, *TRANSPOSED)
_MOST_FACTOR = 1e8  # scaling weights by more, or by less than the inverse, may overflow or underflow float32
_WIDE = frozenset(("float64", "float32"))
Scale = Union[TensorMeta, float]


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer; `sizes` is the shape of its weight."""

    node: OpNode
    weight: TensorMeta
    bias: TensorMeta | None
    sizes: tuple[int, ...]
    groups: int
    is_transposed: bool

    @property
    def made(self) -> TensorMeta:
        return self.node.outputs[0]

    @property
    def axis(self) -> int:
        """The channel dimension of its input and output, as a negative number."""
        return 1 - len(self.sizes)

    @property
    def channels(self) -> int:
        """The number of output channels."""
        return self.sizes[1] * self.groups if self.is_transposed else self.sizes[0]

    @property
    def pads_nothing(self) -> bool:
        padding = self.node.attrs.get("padding", 0)
        return padding == "valid" or not any(padding if isinstance(padding, (list, tuple)) else [padding])


def layer_of(node: OpNode, is_weight: Callable[[TensorMeta], bool]) -> Layer | None:
    """Return a node as a layer; None if it runs once, or its weight is not one unsharded floating-point tensor."""
    if is_weight(node.outputs[0]):
        return None
    weight = node["weight"]
    sizes = tuple(size for size in weight.shape if isinstance(size, int))
    if weight.dtype not in FLOATS or weight.placement is not None or not 2 <= len(sizes) == len(weight.shape):
        return None
    is_transposed = node.attrs.get("transposed", base_name(node.op_type) in TRANSPOSED)
    return Layer(node, weight, node["bias"], sizes, node.attrs.get("groups", 1), is_transposed)


def obstacle(is_weight: Callable[[TensorMeta], bool], *tensors: TensorMeta | None) -> str:
    """Return why these cannot be used before a run; "" if all of them are weights or absent."""
    for tensor in tensors:
        if tensor is not None and not is_weight(tensor):
            return f"{tensor.name!r} is not a constant weight"
    return ""


def too_narrow(layer: Layer, factor: object = None) -> str:
    """Return why the weights of a layer cannot be scaled, or ""; a change of sign is always possible.

    Weights use most of the range of float16 already: a product may become subnormal or infinite even if the layer's
    output does not.
    """
    if isinstance(factor, (int, float)):
        if abs(factor) == 1:
            return ""
        if factor and not 1 / _MOST_FACTOR <= abs(factor) <= _MOST_FACTOR:
            return f"weights times {factor:g} may exceed the range of their dtype"
    return "float16 weights may exceed their range when scaled" if layer.weight.dtype == "float16" else ""


def shared(tensor: TensorMeta) -> str:
    """Return why a tensor cannot be changed for one consumer, or ""."""
    return "" if len(tensor.consumers) == 1 else f"{tensor.name!r} is read elsewhere too"


def with_scaled_output(g: Builder, layer: Layer, scale: Scale | None, shift: Scale | None) -> TensorMeta:
    """layer(x, w, b) * scale + shift  ->  layer(x, w * scale, b * scale + shift)"""
    weight, bias = wide(g, layer.weight), None if layer.bias is None else wide(g, layer.bias)
    if isinstance(scale, TensorMeta):
        factors = spread(g, wide(g, scale), layer.channels)
        weight = times(g, weight, _along(g, layer, factors, of_outputs=True))
        bias = None if bias is None else times(g, bias, factors)
    elif scale is not None:
        weight, bias = times(g, weight, scale), None if bias is None else times(g, bias, scale)
    if isinstance(shift, TensorMeta):
        terms = spread(g, wide(g, shift), layer.channels)
        bias = terms if bias is None else plus(g, bias, terms)
    elif shift is not None:
        bias = _filled(g, shift, layer) if bias is None else plus(g, bias, shift)
    return _with_weights(g, layer, layer.node["input"], weight, bias)


def with_scaled_input(g: Builder, layer: Layer, x: TensorMeta, scale: TensorMeta, shift: TensorMeta) -> TensorMeta:
    """layer(x * scale + shift, w, b)  ->  layer(x, w * scale, sum(w * shift) + b), for a layer without padding"""
    weight = wide(g, layer.weight)
    scaled = times(g, weight, _along(g, layer, scale, of_outputs=False))
    shifted = times(g, weight, _along(g, layer, shift, of_outputs=False))
    bias = g.op("aten.sum.dim_IntList", self=shifted, dim=list(range(1, len(layer.sizes))))
    if layer.bias is not None:
        bias = plus(g, bias, wide(g, layer.bias))
    return _with_weights(g, layer, x, scaled, bias)


def wide(g: Builder, tensor: TensorMeta) -> TensorMeta:
    """Return a weight in float32, or in float64 if it has that."""
    return tensor if tensor.dtype in _WIDE else g.cast(tensor, "float32")


def times(g: Builder, one: TensorMeta, other: Scale) -> TensorMeta:
    return g.op("aten.mul.Tensor", self=one, other=other)


def plus(g: Builder, one: TensorMeta, other: Scale) -> TensorMeta:
    return g.op("aten.add.Tensor", self=one, other=other)


def reshaped(g: Builder, tensor: TensorMeta, *shape: int) -> TensorMeta:
    return tensor if tensor.shape == shape else g.op("aten.reshape.default", self=tensor, shape=list(shape))


def spread(g: Builder, tensor: TensorMeta, size: int) -> TensorMeta:
    """Return a tensor with at most one dimension other than 1 as a vector of this size, expanded if needed."""
    flat = reshaped(g, tensor, max([1, *(dim for dim in tensor.shape if isinstance(dim, int))]))
    return flat if flat.shape == (size,) else g.op("aten.expand.default", self=flat, size=[size])


def each(value: Any, rank: int) -> list[Any]:
    """Return one number per dimension; a single number applies to all dimensions."""
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    return numbers * rank if len(numbers) == 1 else numbers


def _with_weights(g: Builder, layer: Layer, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> TensorMeta:
    dtype = layer.weight.dtype
    weight, bias = g.cast(weight, dtype), None if bias is None else g.cast(bias, dtype)
    return g.like(layer.node, input=x, weight=weight, bias=bias)


def _filled(g: Builder, number: float, layer: Layer) -> TensorMeta:
    """Return a vector with this number for every output channel."""
    return g.op("aten.new_full.default", self=wide(g, layer.weight), size=[layer.channels], fill_value=number)


def _along(g: Builder, layer: Layer, vector: TensorMeta, *, of_outputs: bool) -> TensorMeta:
    """Reshape a vector over channels so that it broadcasts along the weight's dimension of those channels."""
    ones = [1] * (len(layer.sizes) - 2)
    if of_outputs is not layer.is_transposed:
        return reshaped(g, vector, layer.sizes[0], 1, *ones)
    rows = reshaped(g, vector, layer.groups, layer.sizes[1], *ones)
    if layer.groups == 1:
        return rows
    per_group = layer.sizes[0] // layer.groups
    return g.op("aten.repeat_interleave.self_int", self=rows, repeats=per_group, dim=0)
