"""Division that rounds, remainders and powers, for whole numbers and fractions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torch_ir.errors import ConversionError
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.stablehlo.element_types import HALVES, UNSIGNED, is_complex, is_float
from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, in_double, operand, to_shape, truncated
from torch_ir.targets.stablehlo.rules.rule_table import add, lowers


def _pair(hlo: Builder, made: Made, left: Any, right: Any) -> tuple[Value, Value]:
    """Return both operands in the dtype in which torch computes."""
    dtype = "float32" if made[0].dtype in HALVES else made[0].dtype
    return operand(hlo, left, dtype), operand(hlo, right, dtype)


def _differ_in_sign(hlo: Builder, rest: Value, divisor: Value) -> Value:
    """Whether a remainder is not zero and its sign is not the divisor's."""
    zero = hlo.like(rest, 0)
    signs = [hlo.compare("LT", value, hlo.full(0, (), value.dtype)) for value in (divisor, rest)]
    return hlo.pointwise("and", hlo.compare("NE", rest, zero), hlo.pointwise("xor", *signs))


def floor_quotient(hlo: Builder, left: Value, right: Value) -> Value:
    """Return the quotient rounded down: of fractions as Python computes it, from the exact remainder."""
    if left.dtype in UNSIGNED:
        return hlo.pointwise("divide", left, right)
    rest = hlo.pointwise("remainder", left, right)
    wrong = _differ_in_sign(hlo, rest, right)
    if not is_float(left.dtype):
        whole = hlo.pointwise("divide", left, right)
        return hlo.select(wrong, hlo.pointwise("subtract", whole, hlo.like(whole, 1)), whole)
    plain = hlo.pointwise("divide", left, right)
    exact = hlo.pointwise("divide", hlo.pointwise("subtract", left, rest), right)
    exact = hlo.select(wrong, hlo.pointwise("subtract", exact, hlo.like(exact, 1)), exact)
    down = hlo.pointwise("floor", exact)
    is_above = hlo.compare("GT", hlo.pointwise("subtract", exact, down), hlo.like(exact, 0.5))
    down = hlo.select(is_above, hlo.pointwise("add", down, hlo.like(down, 1)), down)
    zero = hlo.pointwise("multiply", plain, hlo.like(plain, 0))  # with the sign of the quotient
    down = hlo.select(hlo.compare("EQ", exact, hlo.like(exact, 0)), zero, down)
    return hlo.select(hlo.compare("EQ", right, hlo.full(0, (), right.dtype)), plain, down)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(hlo: Builder, made: Made, self: Any, other: Any) -> Value:
    return to_shape(hlo, floor_quotient(hlo, *_pair(hlo, made, self, other)), made[0])


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def divide(hlo: Builder, made: Made, self: Any, other: Any, rounding_mode: str | None = None) -> Value:
    left, right = _pair(hlo, made, self, other)
    if rounding_mode == "floor":
        return to_shape(hlo, floor_quotient(hlo, left, right), made[0])
    quotient = hlo.pointwise("divide", left, right)
    return to_shape(hlo, truncated(hlo, made, quotient) if rounding_mode == "trunc" else quotient, made[0])


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(hlo: Builder, made: Made, self: Any, other: Any) -> Value:
    """The remainder has the sign of the divisor."""
    left, right = _pair(hlo, made, self, other)
    rest = hlo.pointwise("remainder", left, right)
    if rest.dtype not in UNSIGNED:
        rest = hlo.select(_differ_in_sign(hlo, rest, right), hlo.pointwise("add", rest, right), rest)
    return to_shape(hlo, rest, made[0])


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(hlo: Builder, made: Made, self: Any, other: Any) -> Value:
    """The remainder has the sign of the dividend."""
    return to_shape(hlo, hlo.pointwise("remainder", *_pair(hlo, made, self, other)), made[0])


# -- powers -----------------------------------------------------------------------------------------------------------


def _times(hlo: Builder, value: Value, count: int) -> Value:
    """Return a power by repeated squaring."""
    result = None
    while count:
        if count & 1:
            result = value if result is None else hlo.pointwise("multiply", result, value)
        count >>= 1
        value = hlo.pointwise("multiply", value, value) if count else value
    return hlo.like(value, 1) if result is None else result


def _power_by_number(hlo: Builder, value: Value, exponent: Any) -> Value:
    """The exponents that torch computes without `pow` are computed likewise."""
    if exponent in (0, 1, 2, 3) or (not is_float(value.dtype) and not is_complex(value.dtype) and exponent >= 0):
        return _times(hlo, value, int(exponent))
    if exponent in (0.5, -0.5):
        return hlo.pointwise("sqrt" if exponent > 0 else "rsqrt", value)
    if exponent in (-1, -2):
        return hlo.pointwise("divide", hlo.like(value, 1), _times(hlo, value, -int(exponent)))
    if is_complex(value.dtype):
        raise ConversionError("there is no rule for complex powers")  # XLA's differ for infinities and NaN
    return hlo.pointwise("power", value, hlo.like(value, exponent))


@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(hlo: Builder, made: Made, self: Any, exponent: Any) -> Value:
    if isinstance(self, Value) and not isinstance(exponent, (Value, str)):
        dtype = "float32" if made[0].dtype in HALVES else made[0].dtype
        return to_shape(hlo, _power_by_number(hlo, hlo.convert(self, dtype), exponent), made[0])
    base, times = _pair(hlo, made, self, exponent)
    if is_complex(base.dtype):
        raise ConversionError("there is no rule for complex powers")  # XLA's differ for infinities and NaN
    found = hlo.pointwise("power", base, times) if is_float(base.dtype) else _whole_power(hlo, base, times)
    return to_shape(hlo, found, made[0])


def _whole_power(hlo: Builder, base: Value, exponent: Value) -> Value:
    """Return a power of whole numbers from the digits of the exponent in base 64: XLA takes it modulo 64."""
    bits = torch.iinfo(TORCH_DTYPES[base.dtype]).bits - (base.dtype not in UNSIGNED)
    result, digit = None, hlo.like(exponent, 63)
    zero = hlo.like(exponent, 0)
    positive, square = hlo.pointwise("maximum", exponent, zero), base
    for low in range(0, bits, 6):
        rest = hlo.pointwise("shift_right_logical", positive, hlo.like(exponent, low)) if low else positive
        part = hlo.pointwise("power", square, hlo.pointwise("and", rest, digit))
        result = part if result is None else hlo.pointwise("multiply", result, part)
        square = _times(hlo, square, 64) if low + 6 < bits else square
    assert result is not None
    if base.dtype in UNSIGNED:
        return result
    inverse = hlo.pointwise("power", base, hlo.pointwise("minimum", exponent, zero))  # of 1 and -1; else 0
    return hlo.select(hlo.compare("LT", exponent, zero), inverse, result)


@lowers("aten.square.default")
def square(hlo: Builder, made: Made, self: Value) -> Value:
    value = hlo.convert(self, made[0].dtype)
    return hlo.pointwise("multiply", value, value)


def _by_power(base: float, hlo: Builder, made: Made, self: Value) -> Value:
    value = in_double(hlo, made, self)
    return hlo.convert(hlo.pointwise("power", hlo.like(value, base), value), made[0].dtype)


add("aten.exp2.default", partial(_by_power, 2.0))
