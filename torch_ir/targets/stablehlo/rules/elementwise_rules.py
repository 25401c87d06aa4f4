"""Elementwise operators: arithmetic, comparisons, logic, and choices between values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch

from torch_ir.errors import ConversionError
from torch_ir.ir import Expr, TensorMeta
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.targets.stablehlo.element_types import UNSIGNED, is_complex, is_float
from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules.rule_table import add, lowers

Made = Sequence[TensorMeta]


def operand(hlo: Builder, value: Any, dtype: str) -> Value:
    """Return a tensor or a number as a value of a dtype; numbers and sizes become scalars."""
    if isinstance(value, Expr):
        value = hlo.size(value)
    return hlo.convert(value, dtype) if isinstance(value, Value) else hlo.full(value, (), dtype)


def promoted(left: Any, right: Any) -> str:
    """Return the dtype in which torch compares or combines two operands."""
    return dtype_name(torch.result_type(_example(left), _example(right)))


def _example(value: Any) -> Any:
    if isinstance(value, Expr):
        return 1
    if not isinstance(value, Value):
        return value
    return torch.empty((1,) * len(value.shape), dtype=TORCH_DTYPES[value.dtype], device="meta")


def to_shape(hlo: Builder, value: Value, made: TensorMeta) -> Value:
    """Return a value with the shape and dtype of an output."""
    return hlo.broadcast(hlo.convert(value, made.dtype), made.shape)


def in_double(hlo: Builder, made: Made, value: Value) -> Value:
    """Return the operand of a function that is computed in float64, rounded to the dtype of the result before."""
    return hlo.convert(hlo.convert(only_real(value), made[0].dtype), "float64")


def only_real(value: Value) -> Value:
    """Raise ConversionError for complex numbers, of which a conversion to real ones would drop a part."""
    if is_complex(value.dtype):
        raise ConversionError("there is no rule for complex numbers")
    return value


# -- one operand ------------------------------------------------------------------------------------------------------


def _unary(name: str, hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.pointwise(name, hlo.convert(self, made[0].dtype))


def _rounding(name: str, hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.pointwise(name, self) if is_float(self.dtype) else self


for _op, _name in {
    "exp": "exponential", "expm1": "exponential_minus_one", "log": "log", "log1p": "log_plus_one", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh", "sigmoid": "logistic",
    "neg": "negate",
}.items():  # fmt: skip
    add(f"aten.{_op}.default", partial(_unary, _name))
for _op, _name in {"floor": "floor", "ceil": "ceil", "round": "round_nearest_even"}.items():
    add(f"aten.{_op}.default", partial(_rounding, _name))


@lowers("aten.abs.default")
def absolute(hlo: Builder, made: Made, self: Value) -> Value:
    if self.dtype in (*UNSIGNED, "bool"):
        return self
    size = hlo.emit("abs", [self], self.shape, made[0].dtype)
    if not is_complex(self.dtype):
        return size
    return hlo.select(is_infinite(hlo, made, self), hlo.like(size, float("inf")), size)  # even if a part is NaN


@lowers("aten.trunc.default", "aten.fix.default")
def truncated(hlo: Builder, made: Made, self: Value) -> Value:
    if not is_float(self.dtype):
        return self
    return hlo.select(
        hlo.compare("LT", self, hlo.like(self, 0)), hlo.pointwise("ceil", self), hlo.pointwise("floor", self)
    )


@lowers("aten.relu.default")
def relu(hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.pointwise("maximum", self, hlo.like(self, 0))


@lowers("aten.reciprocal.default")
def reciprocal(hlo: Builder, made: Made, self: Value) -> Value:
    value = hlo.convert(self, made[0].dtype)
    return hlo.pointwise("divide", hlo.like(value, 1), value)


@lowers("aten.sign.default")
def sign(hlo: Builder, made: Made, self: Value) -> Value:
    """Zero for zeros of both signs and for NaN, unlike `stablehlo.sign`."""
    if self.dtype == "bool":
        return self
    zero = hlo.like(self, 0)
    above, below = (hlo.convert(hlo.compare(side, self, zero), self.dtype) for side in ("GT", "LT"))
    return hlo.pointwise("subtract", above, below)


@lowers("aten.isnan.default")
def is_nan(hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.compare("NE", self, self)


@lowers("aten.isfinite.default")
def is_finite(hlo: Builder, made: Made, self: Value) -> Value:
    parts = [hlo.pointwise("is_finite", part, dtype="bool") for part in hlo.parts(self) if is_float(part.dtype)]
    return reduce(partial(hlo.pointwise, "and"), parts, hlo.full(True, self.shape, "bool"))


@lowers("aten.isinf.default")
def is_infinite(hlo: Builder, made: Made, self: Value) -> Value:
    sizes = [hlo.pointwise("abs", part) for part in hlo.parts(self) if is_float(part.dtype)]
    found = [hlo.compare("EQ", size, hlo.like(size, float("inf"))) for size in sizes]
    return reduce(partial(hlo.pointwise, "or"), found, hlo.full(False, self.shape, "bool"))


@lowers("aten.signbit.default")
def signbit(hlo: Builder, made: Made, self: Value) -> Value:
    """The sign of the bits as a whole number, which zeros and NaN have too."""
    bits = {"float64": "int64", "float32": "int32", "float16": "int16", "bfloat16": "int16"}.get(self.dtype)
    if self.dtype in (*UNSIGNED, "bool"):
        return hlo.full(False, self.shape, "bool")
    value = hlo.emit("bitcast_convert", [self], self.shape, bits) if bits else self
    return hlo.compare("LT", value, hlo.like(value, 0))


@lowers("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(hlo: Builder, made: Made, self: Value, other: Any) -> Value:
    size = hlo.pointwise("abs", operand(hlo, self, made[0].dtype))
    is_negative = signbit(hlo, made, operand(hlo, other, made[0].dtype))
    return to_shape(hlo, hlo.select(is_negative, hlo.pointwise("negate", size), size), made[0])


@lowers("aten.bitwise_not.default")
def bitwise_not(hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.pointwise("not", self)


@lowers("aten.logical_not.default")
def logical_not(hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.pointwise("not", hlo.convert(self, "bool"))


# -- two operands -----------------------------------------------------------------------------------------------------


def binary(hlo: Builder, name: str, left: Any, right: Any, dtype: str) -> Value:
    """Write an operator of two operands, which are converted to a dtype."""
    return hlo.pointwise(name, operand(hlo, left, dtype), operand(hlo, right, dtype))


def _scaled(hlo: Builder, value: Any, alpha: Any, dtype: str) -> Value:
    """Return `alpha * value`; torch multiplies complex numbers by 1, too, so that an infinity reaches both parts."""
    converted = operand(hlo, value, dtype)
    if not is_complex(dtype):
        return converted if alpha == 1 else binary(hlo, "multiply", converted, alpha, dtype)
    real, imag = hlo.parts(converted)
    factor = complex(alpha)
    products = [
        (hlo.pointwise("multiply", real, hlo.like(real, left)), hlo.pointwise("multiply", imag, hlo.like(imag, right)))
        for left, right in ((factor.real, factor.imag), (factor.imag, factor.real))
    ]
    first, second = (hlo.pointwise(name, *pair) for name, pair in zip(("subtract", "add"), products, strict=True))
    return hlo.pointwise("complex", first, second, dtype=dtype)


@lowers("aten.add.Tensor", "aten.add.Scalar")
def addition(hlo: Builder, made: Made, self: Any, other: Any, alpha: Any = 1) -> Value:
    dtype = made[0].dtype
    return to_shape(hlo, binary(hlo, "add", self, _scaled(hlo, other, alpha, dtype), dtype), made[0])


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def subtraction(hlo: Builder, made: Made, self: Any, other: Any, alpha: Any = 1) -> Value:
    dtype = made[0].dtype
    return to_shape(hlo, binary(hlo, "subtract", self, _scaled(hlo, other, alpha, dtype), dtype), made[0])


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def reverse_subtraction(hlo: Builder, made: Made, self: Any, other: Any, alpha: Any = 1) -> Value:
    dtype = made[0].dtype
    return to_shape(hlo, binary(hlo, "subtract", other, _scaled(hlo, self, alpha, dtype), dtype), made[0])


def _binary(name: str, hlo: Builder, made: Made, self: Any, other: Any) -> Value:
    return to_shape(hlo, binary(hlo, name, self, other, made[0].dtype), made[0])


for _op, _name in {
    "mul.Tensor": "multiply", "mul.Scalar": "multiply", "div.Tensor": "divide", "div.Scalar": "divide",
    "maximum.default": "maximum", "minimum.default": "minimum", "atan2.default": "atan2",
    **{f"{kind}.{side}": name for side in ("Tensor", "Scalar", "Scalar_Tensor") for kind, name in {
        "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}.items()},
    **{f"{kind}.{side}": name for side in ("Tensor", "Scalar") for kind, name in {
        "__and__": "and", "__or__": "or", "__xor__": "xor"}.items()},
}.items():  # fmt: skip
    add(f"aten.{_op}", partial(_binary, _name))


def _logical(name: str, hlo: Builder, made: Made, self: Value, other: Value) -> Value:
    return binary(hlo, name, self, other, "bool")


for _name in ("and", "or", "xor"):
    add(f"aten.logical_{_name}.default", partial(_logical, _name))


def _comparison(direction: str, hlo: Builder, made: Made, self: Value, other: Any) -> Value:
    dtype = promoted(self, other)
    return to_shape(hlo, hlo.compare(direction, operand(hlo, self, dtype), operand(hlo, other, dtype)), made[0])


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _side in ("Tensor", "Scalar"):
        add(f"aten.{_name}.{_side}", partial(_comparison, _name.upper()))


def _ignoring_nan(name: str, hlo: Builder, made: Made, self: Value, other: Value) -> Value:
    """The other operand where one is NaN."""
    left, right = (operand(hlo, value, made[0].dtype) for value in (self, other))
    chosen = hlo.select(hlo.compare("NE", right, right), left, hlo.pointwise(name, left, right))
    return to_shape(hlo, hlo.select(hlo.compare("NE", left, left), right, chosen), made[0])


add("aten.fmax.default", partial(_ignoring_nan, "maximum"))
add("aten.fmin.default", partial(_ignoring_nan, "minimum"))


def _shift(name: str, hlo: Builder, made: Made, self: Value, other: Any) -> Value:
    """Shifting by more bits than there are leaves zeros, or the sign."""
    dtype = made[0].dtype
    value, amount = operand(hlo, self, dtype), operand(hlo, other, dtype)
    bits = torch.iinfo(TORCH_DTYPES[dtype]).bits
    inside = hlo.pointwise(
        "and", hlo.compare("GE", amount, hlo.like(amount, 0)), hlo.compare("LT", amount, hlo.like(amount, bits))
    )
    if name == "shift_left":
        beyond = hlo.like(value, 0)
    else:
        beyond = hlo.pointwise("shift_right_arithmetic", value, hlo.like(value, bits - 1))
    if name != "shift_left" and dtype in UNSIGNED:
        name, beyond = "shift_right_logical", hlo.like(value, 0)
    return to_shape(
        hlo, hlo.select(inside, hlo.pointwise(name, value, hlo.select(inside, amount, hlo.like(amount, 0))), beyond),
        made[0],
    )  # fmt: skip


for _side in ("Tensor", "Scalar", "Tensor_Scalar"):
    for _op, _name in {"left": "shift_left", "right": "shift_right_arithmetic"}.items():
        if _side != "Scalar":
            add(f"aten.bitwise_{_op}_shift.{_side}", partial(_shift, _name))
        if _side != "Tensor_Scalar":
            add(f"aten.__{_op[0]}shift__.{_side}", partial(_shift, _name))


# -- choices ----------------------------------------------------------------------------------------------------------


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(hlo: Builder, made: Made, condition: Value, self: Any, other: Any) -> Value:
    dtype = made[0].dtype
    chosen = (operand(hlo, self, dtype), operand(hlo, other, dtype))
    return hlo.broadcast(hlo.select(hlo.convert(condition, "bool"), *chosen), made[0].shape)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(hlo: Builder, made: Made, self: Value, mask: Value, value: Any) -> Value:
    filled = hlo.select(mask, operand(hlo, value, self.dtype), self)
    return hlo.broadcast(filled, made[0].shape)


def _clamp(hlo: Builder, made: Made, self: Value, min: Any = None, max: Any = None) -> Value:
    value = hlo.convert(self, made[0].dtype)
    for name, bound in (("maximum", min), ("minimum", max)):
        value = value if bound is None else binary(hlo, name, value, bound, value.dtype)
    return to_shape(hlo, value, made[0])


for _op in ("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_min.Tensor", "clamp_max.default",
            "clamp_max.Tensor"):  # fmt: skip
    add(f"aten.{_op}", _clamp)


@lowers("aten.hardtanh.default")
def hardtanh(hlo: Builder, made: Made, self: Value, min_val: Any, max_val: Any) -> Value:
    return _clamp(hlo, made, self, min_val, max_val)


# -- conversions and copies -------------------------------------------------------------------------------------------


def _copy(hlo: Builder, made: Made, self: Value, **_: Any) -> Value:
    return to_shape(hlo, self, made[0])


for _op in (
    "to.dtype", "to.dtype_layout", "to.device", "to.other", "_to_copy.default", "clone.default", "contiguous.default",
    "detach.default", "alias.default", "lift_fresh_copy.default", "lift_fresh.default", "resolve_conj.default",
    "resolve_neg.default", "expand.default", "expand_as.default", "broadcast_to.default", "expand_copy.default",
):  # fmt: skip
    add(f"aten.{_op}", _copy)


@lowers("aten.copy.default")
def copy(hlo: Builder, made: Made, self: Value, src: Value, non_blocking: bool = False) -> Value:
    return to_shape(hlo, src, made[0])


@lowers("aten.polar.default")
def polar(hlo: Builder, made: Made, abs: Value, angle: Value) -> Value:
    parts = (hlo.pointwise("multiply", abs, hlo.pointwise(name, angle)) for name in ("cosine", "sine"))
    return to_shape(hlo, hlo.pointwise("complex", *parts, dtype=made[0].dtype), made[0])


@lowers("aten.complex.default")
def complex_number(hlo: Builder, made: Made, real: Value, imag: Value) -> Value:
    return to_shape(hlo, hlo.pointwise("complex", real, imag, dtype=made[0].dtype), made[0])
