"""Fold additions and multiplications after a convolution or a linear layer into its weights.

The other operand must be a number or a weight with one element per channel. Float16 weights are not scaled, as the
product may exceed their range; division by a weight stays, as it may contain zeros.
"""

from __future__ import annotations

import math
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.passes.weights.affine import (
    LAYERS,
    Layer,
    Scale,
    layer_of,
    obstacle,
    shared,
    too_narrow,
    wide,
    with_scaled_output,
)
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.pattern import either_order

_layer = op(*LAYERS).named("before")


@rule(*either_order(op("aten.add", self=_layer, other="other", alpha=1)))
def add_to_layer(g: Builder, node: OpNode, before: OpNode, other: Any) -> object:
    """conv(x, w, b) + c  ->  conv(x, w, b + c)"""
    layer = _foldable(g, node, before, other)
    return with_scaled_output(g, layer, None, other) if isinstance(layer, Layer) else layer


@rule(op("aten.sub", self=_layer, other="other", alpha=1))
def subtract_from_layer(g: Builder, node: OpNode, before: OpNode, other: Any) -> object:
    """conv(x, w, b) - c  ->  conv(x, w, b + -c)"""
    layer = _foldable(g, node, before, other)
    return with_scaled_output(g, layer, None, _negative(g, other)) if isinstance(layer, Layer) else layer


@rule(op("aten.sub", self="other", other=_layer, alpha=1))
def subtract_layer(g: Builder, node: OpNode, before: OpNode, other: Any) -> object:
    """c - conv(x, w, b)  ->  conv(x, w * -1, b * -1 + c)"""
    layer = _foldable(g, node, before, other, factor=-1)
    return with_scaled_output(g, layer, -1.0, other) if isinstance(layer, Layer) else layer


@rule(*either_order(op("aten.mul", self=_layer, other="other")))
def multiply_layer(g: Builder, node: OpNode, before: OpNode, other: Any) -> object:
    """conv(x, w, b) * c  ->  conv(x, w * c, b * c)"""
    layer = _foldable(g, node, before, other, factor=other)
    return with_scaled_output(g, layer, other, None) if isinstance(layer, Layer) else layer


@rule(op("aten.div.Tensor", "aten.div.Scalar", self=_layer, other="other"))
def divide_layer(g: Builder, node: OpNode, before: OpNode, other: Any) -> object:
    """conv(x, w, b) / 8.0  ->  conv(x, w * 0.125, b * 0.125)"""
    layer = _foldable(g, node, before, other, factor=other)
    if not isinstance(layer, Layer):
        return layer
    if isinstance(other, TensorMeta):
        return f"{other.name!r} may contain zeros"
    inverse = 1 / other if other else math.inf
    return with_scaled_output(g, layer, inverse, None) if inverse and math.isfinite(inverse) else None


def _foldable(g: Builder, node: OpNode, before: OpNode, other: Any, *, factor: Any = None) -> Layer | str | None:
    """Return the layer whose weights can absorb `other`, the reason why they cannot, or None if it does not apply.

    `factor` is what the weights are multiplied with, if anything.
    """
    layer = layer_of(before, g.is_weight)
    if layer is None or node.outputs[0].dtype != layer.made.dtype:
        return None
    if isinstance(other, TensorMeta):
        if not g.is_weight(other) or not _is_per_channel(other, layer):
            return None
    elif not isinstance(other, (int, float)):
        return None
    why = obstacle(g.is_weight, layer.weight, layer.bias) or shared(layer.made)
    if factor is not None and not why:
        # a shared weight would be stored twice to save one cheap operator
        why = too_narrow(layer, factor) or shared(layer.weight)
    return why or layer


def _is_per_channel(tensor: TensorMeta, layer: Layer) -> bool:
    """Whether a tensor has one element, or one per channel in the channel dimension."""
    if tensor.placement is not None or len(tensor.shape) > len(layer.made.shape):
        return False
    places = range(-len(tensor.shape), 0)
    return all(
        size == 1 or (place == layer.axis and size == layer.channels)
        for place, size in zip(places, tensor.shape, strict=True)
    )


def _negative(g: Builder, value: Scale) -> Scale:
    return g.op("aten.neg.default", self=wide(g, value)) if isinstance(value, TensorMeta) else -value


fold_arithmetic = rule_pass(
    "fold-arithmetic",
    "Fold additions to and multiplications of a convolution or linear layer into its weights.",
    [add_to_layer, subtract_from_layer, subtract_layer, multiply_layer, divide_layer],
)
