"""Fold padding into the convolution or pooling that follows, if that can pad with the same value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import CONVOLUTIONS
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.passes.weights.affine import each
from torch_ir.rewrite import Builder, op, rule

_pads = (op("aten.constant_pad_nd.default").named("pad"), op("aten.pad.default").when(mode="constant").named("pad"))
_AVERAGES = ("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
_LARGEST = ("aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default")


@rule(*[op(*CONVOLUTIONS, input=pad) for pad in _pads])
def pad_into_convolution(g: Builder, node: OpNode, pad: OpNode) -> object:
    """conv(pad(x, [1, 1, 1, 1]), w, padding=[0, 0])  ->  conv(x, w, padding=[1, 1])"""
    if _value(pad) != 0 or node.attrs.get("transposed"):
        return None
    rank = len(node["weight"].shape) - 2
    if node["padding"] == "same":
        return "the amount that padding='same' adds depends on the padded size"
    given = [0] * rank if node["padding"] == "valid" else each(node["padding"], rank)
    padding = _added(pad, given)
    if isinstance(padding, str):
        return padding
    op_type = node.op_type.replace(".padding", ".default")
    names = dict.fromkeys((*node.args, *node.attrs))
    return g.op(op_type, **{**{name: node[name] for name in names}, "input": pad["self"], "padding": padding})


@rule(*[op(*_AVERAGES, self=pad, count_include_pad=True, ceil_mode=False) for pad in _pads])
def pad_into_average(g: Builder, node: OpNode, pad: OpNode) -> object:
    """avg_pool(pad(x, [1, 1, 1, 1]), padding=[0, 0])  ->  avg_pool(x, padding=[1, 1]), which counts the padding too"""
    return _into_pool(g, node, pad) if _value(pad) == 0 else None


@rule(*[op(*_LARGEST, self=pad, ceil_mode=False) for pad in _pads])
def pad_into_largest(g: Builder, node: OpNode, pad: OpNode) -> object:
    """max_pool(pad(x, [1, 1, 1, 1], -inf), padding=[0, 0])  ->  max_pool(x, padding=[1, 1])"""
    return _into_pool(g, node, pad) if _value(pad) == -math.inf else None


def _into_pool(g: Builder, node: OpNode, pad: OpNode) -> object:
    rank = int(node.op_type[-len("1d.default")])
    padding = _added(pad, each(node["padding"], rank))
    if isinstance(padding, str):
        return padding
    if any(2 * size > kernel for size, kernel in zip(padding, each(node["kernel_size"], rank), strict=True)):
        return "pooling pads by at most half of its window"
    return g.like(node, self=pad["self"], padding=padding)


def _value(pad: OpNode) -> Any:
    return 0 if pad["value"] is None else pad["value"]


def _added(pad: OpNode, given: Sequence[Any]) -> list[int] | str:
    """Return the sum of the padding by `pad` and the given one, or the reason why it cannot be folded."""
    sizes = [*pad["pad"], *[0] * (2 * len(given) - len(pad["pad"]))]
    befores, afters = sizes[0::2], sizes[1::2]
    if not all(type(size) is int and size >= 0 for size in (*sizes, *given)):
        return "it crops, or pads by a symbolic size"
    if befores != afters:
        return "it pads one side more than the other"
    if any(befores[len(given) :]):
        return "it pads the batch or the channels"
    return [one + other for one, other in zip(given, befores[: len(given)][::-1], strict=True)]


fold_padding = rule_pass(
    "fold-padding",
    "Fold padding into the convolution or pooling that follows.",
    [pad_into_convolution, pad_into_average, pad_into_largest],
)
