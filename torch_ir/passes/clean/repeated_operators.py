"""Repeated operators: f(f(x)) that equals f(x) or x, and nested clamps."""

from __future__ import annotations

import math
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.clamp_bounds import CLAMPS, bounds_of
from torch_ir.passes.clean.same_layout import is_like
from torch_ir.rewrite import Builder, op, rule

_ONCE_IS_ENOUGH = tuple(f"aten.{name}.default" for name in ("abs", "ceil", "floor", "round", "sgn", "sign", "trunc"))
_UNDONE = tuple(f"aten.{name}.default" for name in ("bitwise_not", "conj_physical", "logical_not", "neg"))
_NOT = op("aten.logical_not.default", "aten.bitwise_not.default", self="mask")


@rule(*(op(name, self=op(name, self="x")) for name in _ONCE_IS_ENOUGH))
def once_is_enough(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """abs(abs(x))  ->  abs(x)"""
    return node["self"]


@rule(*(op(name, self=op(name, self="x")) for name in _UNDONE))
def undone(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """neg(neg(x)), logical_not(logical_not(x))  ->  x"""
    return x if is_like(x, node.output) else None


@rule(op("aten.abs.default", self=op("aten.neg.default", self="x")))
def sign_is_dropped(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """abs(neg(x))  ->  abs(x)"""
    return None if x.dtype.startswith("uint") else g.op("aten.abs.default", self=x)


@rule(op("aten.where.self", condition=_NOT, self="x", other="y"))
def other_way_round(g: Builder, node: OpNode, mask: TensorMeta, x: TensorMeta, y: TensorMeta) -> Any:
    """where(not mask, x, y)  ->  where(mask, y, x)"""
    return g.op("aten.where.self", condition=mask, self=y, other=x) if mask.dtype == "bool" else None


@rule(op(*CLAMPS, self=op(*CLAMPS, self="x").named("inner")))
def one_bound(g: Builder, node: OpNode, inner: OpNode, x: TensorMeta) -> Any:
    """clamp(relu(x), max=6)  ->  clamp(x, 0, 6)"""
    if not x.dtype == inner.output.dtype == node.output.dtype:
        return None
    (low, high), (least, most) = _bounds(inner), _bounds(node)
    if not (low <= high and least <= most):
        return None  # torch returns the upper bound then, or NaN
    if "float" not in x.dtype and not all(map(_is_small, (low, high, least, most))):
        return None  # in an integer dtype, -1 may become 255, and a fractional bound changes the dtype
    both = (min(max(low, least), most), min(max(high, least), most))
    if both == (low, high):
        return inner.output
    if "float" in x.dtype and both[0] == both[1] == 0:
        return None  # a zero of either sign is within the merged bounds, but not within those of the inner clamp
    if len(inner.output.consumers) > 1:
        return "another node reads the result of the inner clamp"
    if both == (least, most):
        return g.like(node, self=x)
    return g.op("aten.clamp.default", self=x, min=_finite(both[0]), max=_finite(both[1]))


def _bounds(node: OpNode) -> tuple[Any, Any]:
    low, high = bounds_of(node) or (None, None)
    return -math.inf if low is None else low, math.inf if high is None else high


def _is_small(bound: Any) -> bool:
    """Whether a bound is infinite (absent) or representable in every dtype."""
    return math.isinf(bound) or (type(bound) is int and 0 <= bound <= 127)


def _finite(bound: Any) -> Any:
    return None if math.isinf(bound) else bound


EXACT = (once_is_enough, undone, sign_is_dropped, other_way_round, one_bound)
