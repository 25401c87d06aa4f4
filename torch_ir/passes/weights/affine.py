"""Convolutions and linear layers: a scale and a shift of what they make, or of what they read, goes into their weights.

The new weights are nodes over the old ones, so no value is needed. Their arithmetic is done in float32, or in float64
where a weight has that, and rounded once, at the end, to the dtype that the weight had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Union

from torch_ir.ir import Dtype, OpNode, TensorMeta
from torch_ir.rewrite import Builder

LINEAR = "aten.linear.default"
CONVOLUTIONS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution.default")
TRANSPOSED = ("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
LAYERS = (LINEAR, *CONVOLUTIONS, *TRANSPOSED)
FLOATS = frozenset(("float64", "float32", "float16", "bfloat16"))
_MOST_FACTOR = 1e8  # weights times more than that, or less than its inverse, may leave the range even of float32
_WIDE = frozenset(("float64", "float32"))
Scale = Union[TensorMeta, float]


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer; `sizes` are those of its weight."""

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
        """Where channels are in what it reads and in what it makes, counted from the end."""
        return 1 - len(self.sizes)

    @property
    def channels(self) -> int:
        """How many channels it makes."""
        return self.sizes[1] * self.groups if self.is_transposed else self.sizes[0]

    @property
    def pads_nothing(self) -> bool:
        padding = self.node.attrs.get("padding", 0)
        return padding == "valid" or not any(padding if isinstance(padding, (list, tuple)) else [padding])


def layer_of(node: OpNode) -> Layer | None:
    """A node as a layer; None where its weight is not one whole tensor of floating-point numbers."""
    weight = node["weight"]
    sizes = tuple(size for size in weight.shape if isinstance(size, int))
    if weight.dtype not in FLOATS or weight.placement is not None or not 2 <= len(sizes) == len(weight.shape):
        return None
    is_transposed = node.attrs.get("transposed", node.op_type.rpartition(".")[0] in TRANSPOSED)
    return Layer(node, weight, node["bias"], sizes, node.attrs.get("groups", 1), is_transposed)


def obstacle(is_weight: Callable[[TensorMeta], bool], *tensors: TensorMeta | None) -> str:
    """Why these cannot be computed with before a run; nothing where all of them are weights, or absent."""
    for tensor in tensors:
        if tensor is not None and not is_weight(tensor):
            return f"{tensor.name!r} is not a weight that stays as it is"
    return ""


def too_narrow(layer: Layer, factor: object = None) -> str:
    """Why the weights of a layer cannot be multiplied with something, or nothing; a sign may always go into them.

    Most of the range of float16 is used by weights as they are: a product may be subnormal, where few bits are left, or
    infinite, though what the layer makes is neither.
    """
    if isinstance(factor, (int, float)):
        if abs(factor) == 1:
            return ""
        if factor and not 1 / _MOST_FACTOR <= abs(factor) <= _MOST_FACTOR:
            return f"weights times {factor:g} may leave the range of their dtype"
    return "weights in float16 may leave its range when scaled" if layer.weight.dtype == "float16" else ""


def shared(tensor: TensorMeta) -> str:
    """Why a tensor cannot be changed for the sake of one reader, or nothing."""
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
    """layer(x * scale + shift, w, b)  ->  layer(x, w * scale, sum(w * shift) + b), where the layer pads nothing"""
    weight = wide(g, layer.weight)
    scaled = times(g, weight, _along(g, layer, scale, of_outputs=False))
    shifted = times(g, weight, _along(g, layer, shift, of_outputs=False))
    bias: TensorMeta = g.op("aten.sum.dim_IntList", self=shifted, dim=list(range(1, len(layer.sizes))))
    if layer.bias is not None:
        bias = plus(g, bias, wide(g, layer.bias))
    return _with_weights(g, layer, x, scaled, bias)


def wide(g: Builder, tensor: TensorMeta) -> TensorMeta:
    """A weight in a dtype to compute in."""
    return tensor if tensor.dtype in _WIDE else narrow(g, tensor, "float32")


def narrow(g: Builder, tensor: TensorMeta, dtype: str) -> TensorMeta:
    """A weight in the dtype that it must have in the end."""
    made: TensorMeta = tensor if tensor.dtype == dtype else g.op("aten.to.dtype", self=tensor, dtype=Dtype(dtype))
    return made


def times(g: Builder, one: TensorMeta, other: Scale) -> TensorMeta:
    made: TensorMeta = g.op("aten.mul.Tensor", self=one, other=other)
    return made


def plus(g: Builder, one: TensorMeta, other: Scale) -> TensorMeta:
    made: TensorMeta = g.op("aten.add.Tensor", self=one, other=other)
    return made


def reshaped(g: Builder, tensor: TensorMeta, *shape: int) -> TensorMeta:
    same = tensor.shape == shape
    made: TensorMeta = tensor if same else g.op("aten.reshape.default", self=tensor, shape=list(shape))
    return made


def spread(g: Builder, tensor: TensorMeta, size: int) -> TensorMeta:
    """A tensor of one element, or of `size`, as a vector of that size."""
    flat = reshaped(g, tensor, _count(tensor.shape))
    made: TensorMeta = flat if flat.shape == (size,) else g.op("aten.expand.default", self=flat, size=[size])
    return made


def _count(shape: Sequence[int | str]) -> int:
    """Elements of a shape that has at most one dimension other than 1."""
    return max([1, *(size for size in shape if isinstance(size, int))])


def _with_weights(g: Builder, layer: Layer, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> TensorMeta:
    dtype = layer.weight.dtype
    weight, bias = narrow(g, weight, dtype), None if bias is None else narrow(g, bias, dtype)
    made: TensorMeta = g.like(layer.node, input=x, weight=weight, bias=bias)
    return made


def _filled(g: Builder, number: float, layer: Layer) -> TensorMeta:
    """A number as a vector over the channels that a layer makes."""
    like = wide(g, layer.weight)
    made: TensorMeta = g.op("aten.new_full.default", self=like, size=[layer.channels], fill_value=number)
    return made


def _along(g: Builder, layer: Layer, vector: TensorMeta, *, of_outputs: bool) -> TensorMeta:
    """A vector over channels, laid along the weight's dimension of these; a group counts its own from 0."""
    ones = [1] * (len(layer.sizes) - 2)
    if of_outputs is not layer.is_transposed:
        return reshaped(g, vector, layer.sizes[0], 1, *ones)
    rows = reshaped(g, vector, layer.groups, layer.sizes[1], *ones)
    if layer.groups == 1:
        return rows
    each = layer.sizes[0] // layer.groups
    made: TensorMeta = g.op("aten.repeat_interleave.self_int", self=rows, repeats=each, dim=0)
    return made
