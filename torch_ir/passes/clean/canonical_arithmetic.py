"""Canonical arithmetic: one form for sums, products and powers with scalars and negations, and for clamps.

Every rule is bit-exact for the dtypes it accepts; where torch computes two forms differently, such as `pow(x, 0.5)` and
`sqrt(x)` in float16, both stay.
"""

from __future__ import annotations

import math
from typing import Any

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS
from torch_ir.passes.clamp_bounds import bounds_of
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.builder import arguments_of
from torch_ir.rewrite.pattern import either_order

_SIGNED = frozenset((*FLOATS, "int64", "int32", "int16", "int8"))
_LARGEST = 1 << 24  # integers up to here are exact in every float dtype that torch computes in
_ADD, _SUB, _MUL, _DIV = (f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div"))
_NEG = op("aten.neg.default", self="y")
# Operators that take a scalar beside a float tensor -> their scalar arguments.
_NUMBERS = {
    **dict.fromkeys((_ADD, _SUB, _MUL, _DIV, "aten.rsub.Scalar"), ("other",)),
    **{f"aten.{name}.Scalar": ("other",) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "aten.clamp.default": ("min", "max"),
}
_OTHER_CLAMPS = tuple(f"aten.{name}.default" for name in ("clamp_min", "clamp_max", "hardtanh", "relu6"))


def is_number(value: Any) -> bool:
    """Whether this is an int or a float, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_complex(tensor: TensorMeta) -> bool:
    """Whether a tensor is complex: infinite parts of the second operand of a sum then become NaN, by factor alpha."""
    return tensor.dtype.startswith("complex")


def _is_bool(value: Any) -> bool:
    return value.dtype == "bool" if isinstance(value, TensorMeta) else isinstance(value, bool)


@rule(op("aten.add.Scalar", "aten.sub.Scalar", "aten.mul.Scalar", "aten.div.Scalar"))
def tensor_overload(g: Builder, node: OpNode) -> Any:
    """add.Scalar(x, 2)  ->  add.Tensor(x, 2)"""
    return g.op(node.op_type.replace(".Scalar", ".Tensor"), **arguments_of(node))


@rule(op("aten.div.Tensor_mode", "aten.div.Scalar_mode", self="x", other="y", rounding_mode=None))
def true_division(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """div(x, y, rounding_mode=None)  ->  div(x, y)"""
    return g.op(_DIV, self=x, other=y)


@rule(op(_ADD, _MUL, _SUB, self="number", other="x"))
def number_last(g: Builder, node: OpNode, number: Any, x: Any) -> Any:
    """mul(2, x)  ->  mul(x, 2);  sub(2, x)  ->  rsub(x, 2)"""
    if not is_number(number) or not isinstance(x, TensorMeta) or node.attrs.get("alpha", 1) != 1:
        return None
    if node.op_type == _ADD and is_complex(node.output):
        return None
    return g.op("aten.rsub.Scalar" if node.op_type == _SUB else node.op_type, self=x, other=number)


@rule(op(*_NUMBERS))
def number_as_float(g: Builder, node: OpNode) -> Any:
    """add(x: float32, 2)  ->  add(x: float32, 2.0)"""
    if not isinstance(node["self"], TensorMeta) or node["self"].dtype not in FLOATS:
        return None
    whole = {name: node[name] for name in _NUMBERS[node.op_type] if type(node[name]) is int}
    if not whole or any(abs(number) > _LARGEST for number in whole.values()):
        return None
    return g.like(node, **{name: float(number) for name, number in whole.items()})


@rule(op(_ADD, _SUB, self="x", other="y"))
def unit_factor(g: Builder, node: OpNode, x: Any, y: Any) -> Any:
    """add(x, y, alpha=1.0)  ->  add(x, y);  add(x, y, alpha=-1)  ->  sub(x, y)"""
    alpha = node["alpha"]
    if not is_number(alpha) or abs(alpha) != 1 or (type(alpha) is int and alpha == 1):
        return None
    if alpha == 1 or node.op_type == _SUB:
        return g.op(_ADD if alpha == -1 else node.op_type, self=x, other=y)
    if _is_bool(x) or _is_bool(y):
        return "torch does not subtract bools"
    return g.op(_SUB, self=x, other=y)


@rule(op(_SUB, self="x", other="number", alpha=1))
def added_number(g: Builder, node: OpNode, x: Any, number: Any) -> Any:
    """sub(x, 2.0)  ->  add(x, -2.0)"""
    if not is_number(number) or not isinstance(x, TensorMeta) or x.dtype not in _SIGNED or abs(number) > _LARGEST:
        return None
    return g.op(_ADD, self=x, other=-float(number) if x.dtype in FLOATS else -number)  # 0 becomes -0.0


@rule(*either_order(op(_ADD, self="x", other=_NEG, alpha=1)))
def added_negation(g: Builder, node: OpNode, x: Any, y: TensorMeta) -> Any:
    """add(x, neg(y))  ->  sub(x, y);  add(neg(y), 2.0)  ->  rsub(y, 2.0)"""
    if _is_bool(x):
        return "torch does not subtract from bools"
    if not _negates_alike(y, node.output) or is_complex(node.output):
        return None
    return g.op(_SUB, self=x, other=y) if isinstance(x, TensorMeta) else g.op("aten.rsub.Scalar", self=y, other=x)


@rule(op(_SUB, self="x", other=_NEG, alpha=1))
def subtracted_negation(g: Builder, node: OpNode, x: Any, y: TensorMeta) -> Any:
    """sub(x, neg(y))  ->  add(x, y)"""
    return g.op(_ADD, self=x, other=y) if _negates_alike(y, node.output) else None


def _negates_alike(y: TensorMeta, result: TensorMeta) -> bool:
    """Whether a negation in the dtype of `y` is one in the dtype of the result: smaller integers wrap around, and a
    converted integer 0 has no -0.0.
    """
    return y.dtype == result.dtype or ("float" in y.dtype and "float" in result.dtype)


@rule(op("aten.rsub.Tensor", self="x", other="y", alpha=1))
def subtraction(g: Builder, node: OpNode, x: TensorMeta, y: Any) -> Any:
    """rsub(x, y)  ->  sub(y, x)"""
    return g.op(_SUB, self=y, other=x) if isinstance(y, TensorMeta) else g.op("aten.rsub.Scalar", self=x, other=y)


@rule(op("aten.square.default", self="x"), op(_MUL, self="x", other="x"))
def square(g: Builder, node: OpNode, x: Any) -> Any:
    """square(x), mul(x, x)  ->  pow(x, 2)"""
    is_float = isinstance(x, TensorMeta) and x.dtype in FLOATS
    return g.op("aten.pow.Tensor_Scalar", self=x, exponent=2) if is_float else None


@rule(op("aten.pow.Tensor_Scalar", self="x", exponent="exponent"))
def power(g: Builder, node: OpNode, x: TensorMeta, exponent: Any) -> Any:
    """pow(x, 2.0)  ->  pow(x, 2);  pow(x, 0.5)  ->  sqrt(x);  pow(x, -0.5)  ->  rsqrt(x)"""
    if x.dtype not in FLOATS or not is_number(exponent):
        return None
    if abs(exponent) == 0.5:
        if x.dtype == "float16":
            return "torch rounds roots and powers of float16 differently"
        return g.op("aten.sqrt.default" if exponent > 0 else "aten.rsqrt.default", self=x)
    is_whole = type(exponent) is float and abs(exponent) < _LARGEST and exponent.is_integer()
    return g.like(node, exponent=int(exponent)) if is_whole else None


@rule(op(*_OTHER_CLAMPS, self="x"))
def bound(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """clamp_min(x, 0.5)  ->  clamp(x, 0.5, None);  hardtanh(x, 0.0, 6.0), relu6(x)  ->  clamp(x, 0.0, 6.0)"""
    bounds = bounds_of(node)
    if bounds is None or x.dtype not in FLOATS:
        return None
    return g.op("aten.clamp.default", self=x, min=bounds[0], max=bounds[1])


@rule(op("aten.clamp.default", "aten.clamp_min.default", self="x", min="low"))
def bound_at_zero(g: Builder, node: OpNode, x: TensorMeta, low: Any) -> Any:
    """clamp(x, 0, None)  ->  relu(x)"""
    is_zero = is_number(low) and low == 0 and math.copysign(1, low) > 0
    is_relu = is_zero and node.attrs.get("max") is None and node.output.dtype == x.dtype
    return g.op("aten.relu.default", self=x) if is_relu and x.dtype in _SIGNED else None


ARITHMETIC = (
    tensor_overload, true_division, number_last, unit_factor, added_number, number_as_float, added_negation,
    subtracted_negation, subtraction, square, power, bound_at_zero, bound,
)  # fmt: skip
