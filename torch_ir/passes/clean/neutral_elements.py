"""Neutral elements: x * 1, x - 0, x & True, and `where` with a constant mask.

x + 0.0 turns -0.0 into 0.0, so of the float additions only x + -0.0 is bit-exact. For complex numbers only x - 0 is.
"""

from __future__ import annotations

import math
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.clean.same_layout import is_like
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.pattern import either_order

_AND = ("aten.__and__.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default")
_OR = ("aten.__or__.Tensor", "aten.bitwise_or.Tensor", "aten.logical_or.default")
_SIGNED_ZEROS = ("float", "bfloat", "complex")


def _number(g: Builder, value: Any) -> Any:
    """Return a scalar argument, or the one value of all elements of a tensor; None if unknown."""
    return g.scalar_of(value) if isinstance(value, TensorMeta) else value


def _left(g: Builder, node: OpNode, x: Any, y: Any, neutral: float) -> TensorMeta | None:
    """Return `x` if it equals the node's result because `y` is neutral."""
    return x if isinstance(x, TensorMeta) and is_like(x, node.output) and _number(g, y) == neutral else None


def _either(g: Builder, node: OpNode, x: Any, y: Any, neutral: float) -> TensorMeta | None:
    return _left(g, node, x, y, neutral) or _left(g, node, y, x, neutral)


@rule(op("aten.mul.Tensor", "aten.mul.Scalar", self="x", other="y"))
def times_one(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """mul(x, 1)  ->  x"""
    return _either(g, node, x, y, 1) if _is_real(node) else None


@rule(
    op("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", self="x", other="y"),
    op("aten.pow.Tensor_Scalar", self="x", exponent="y"),
)
def over_one(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """div(x, 1), pow(x, 1)  ->  x"""
    return _left(g, node, x, y, 1) if _is_real(node) else None


@rule(op("aten.sub.Tensor", "aten.sub.Scalar", self="x", other="y", alpha=1))
def minus_zero(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """sub(x, 0)  ->  x"""
    return None if _is_negative_zero(_number(g, y)) else _left(g, node, x, y, 0)


@rule(op("aten.add.Tensor", "aten.add.Scalar", self="x", other="y", alpha=1))
def plus_zero(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """add(x, 0)  ->  x for integers;  add(x, -0.0)  ->  x for floats too"""
    kept = _either(g, node, x, y, 0)
    if kept is None or not kept.dtype.startswith(_SIGNED_ZEROS):
        return kept
    return kept if _is_real(node) and _is_negative_zero(_number(g, y if kept is x else x)) else None


@rule(op("aten.add.Tensor", "aten.add.Scalar", self="x", other="y", alpha=1))
def plus_any_zero(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """add(x, 0.0)  ->  x, which keeps -0.0 where the addition would return 0.0"""
    return _either(g, node, x, y, 0) if _is_real(node) else _left(g, node, x, y, 0)


def _is_real(node: OpNode) -> bool:
    """Whether the result is real: 1 + 0i times x turns infinite parts into NaN, and adding 0i loses the sign of -0.0i.

    `add` multiplies its second argument, by alpha.
    """
    return not node.output.dtype.startswith("complex")


def _is_negative_zero(number: Any) -> bool:
    return isinstance(number, float) and number == 0 and math.copysign(1, number) < 0


@rule(op(*_AND, self="x", other="y"))
def and_true(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """x & True  ->  x"""
    return _either(g, node, x, y, True) if node.output.dtype == "bool" else None


@rule(op(*_OR, self="x", other="y"))
def or_false(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """x | False  ->  x"""
    return _either(g, node, x, y, False) if node.output.dtype == "bool" else None


@rule(op("aten.where.self", condition="mask", self="x", other="y"))
def decided(g: Builder, node: OpNode, mask: TensorMeta, x: TensorMeta, y: TensorMeta) -> Any:
    """where(True, x, y)  ->  x;  where(False, x, y)  ->  y"""
    return _left(g, node, x, mask, True) or _left(g, node, y, mask, False)


@rule(op("aten.masked_fill", self="x", mask="mask"))
def nothing_masked(g: Builder, node: OpNode, x: TensorMeta, mask: TensorMeta) -> Any:
    """masked_fill(x, False, value)  ->  x"""
    return _left(g, node, x, mask, False)


_reciprocal = op("aten.reciprocal.default", self="y").named("inverse").read_once()


@rule(*either_order(op("aten.mul.Tensor", self=_reciprocal, other="x")))
def times_reciprocal(g: Builder, node: OpNode, inverse: OpNode, x: Any, y: TensorMeta) -> Any:
    """mul(x, reciprocal(y))  ->  div(x, y), which rounds once instead of twice"""
    if not isinstance(x, TensorMeta) or inverse.output.dtype != y.dtype:
        return None  # the reciprocal of integers changes the dtype
    return g.op("aten.div.Tensor", self=x, other=y)


EXACT = (times_one, over_one, minus_zero, plus_zero, and_true, or_false, decided, nothing_masked)
NEAR = (plus_any_zero, times_reciprocal)
