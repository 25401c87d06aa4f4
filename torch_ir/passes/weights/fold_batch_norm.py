"""Fold batch norm in inference, a scale and a shift per channel, into the weights of an adjacent layer."""

from __future__ import annotations

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.passes.weights.affine import (
    LAYERS,
    Layer,
    layer_of,
    obstacle,
    plus,
    shared,
    times,
    too_narrow,
    wide,
    with_scaled_input,
    with_scaled_output,
)
from torch_ir.rewrite import Builder, op, rule

_NORMS = (
    "aten.batch_norm.default",
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit_no_training.default",
    "aten._native_batch_norm_legit_functional.default",
)


@rule(op(*_NORMS, input=op(*LAYERS).named("before")))
def norm_after_layer(g: Builder, node: OpNode, before: OpNode) -> object:
    """batch_norm(conv(x, w, b))  ->  conv(x, w * s, b * s + beta - mean * s),  s = gamma / sqrt(var + eps)"""
    layer = layer_of(before, g.is_weight)
    if layer is None:
        return None
    if why := _objection(g, node, layer) or shared(layer.made):
        return why
    made = with_scaled_output(g, layer, *_scale_and_shift(g, node))
    return (made, *[None] * (len(node.outputs) - 1))


@rule(op(*LAYERS, input=op(*_NORMS).named("norm")))
def norm_before_layer(g: Builder, node: OpNode, norm: OpNode) -> object:
    """conv(batch_norm(x), w, b)  ->  conv(x, w * s, sum(w * (beta - mean * s)) + b),  s = gamma / sqrt(var + eps)"""
    layer = layer_of(node, g.is_weight)
    if layer is None:
        return None
    if why := _objection(g, norm, layer) or _objection_before(layer) or shared(norm.outputs[0]):
        return why
    return with_scaled_input(g, layer, norm["input"], *_scale_and_shift(g, norm))


def _objection(g: Builder, norm: OpNode, layer: Layer) -> str:
    """Return why a batch norm is not a constant scale and shift of a layer's channels, or ""."""
    if norm.attrs.get("training", False):
        return "the batch norm is in training mode and uses the statistics of the batch"
    if len(norm["input"].shape) + layer.axis != 1:
        return f"the batch norm is over dimension 1, which does not hold the channels of {layer.node.name!r}"
    if any(statistic.consumers for statistic in norm.outputs[1:]):
        return "the statistics that the batch norm returns are used"
    known = norm["weight"], norm["bias"], norm["running_mean"], norm["running_var"]
    return obstacle(g.is_weight, layer.weight, layer.bias, *known) or too_narrow(layer)


def _objection_before(layer: Layer) -> str:
    if layer.is_transposed:
        return "a transposed convolution adds the shift a number of times that depends on the position"
    return "" if layer.pads_nothing else "the convolution pads with zeros, which the batch norm does not shift"


def _scale_and_shift(g: Builder, norm: OpNode) -> tuple[TensorMeta, TensorMeta]:
    scale = g.op("aten.rsqrt.default", self=plus(g, wide(g, norm["running_var"]), norm["eps"]))
    if norm["weight"] is not None:
        scale = times(g, wide(g, norm["weight"]), scale)
    shift = times(g, wide(g, norm["running_mean"]), scale)
    if norm["bias"] is None:
        return scale, g.op("aten.neg.default", self=shift)
    return scale, g.op("aten.sub.Tensor", self=wide(g, norm["bias"]), other=shift)


fold_batch_norm = rule_pass(
    "fold-batch-norm",
    "Fold batch norms in inference into the weights of the convolution or linear layer before or after them.",
    [norm_after_layer, norm_before_layer],
)
