"""Tensors made of sizes and numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch_ir.ir import Expr
from torch_ir.targets.stablehlo.element_types import is_float
from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, operand, to_shape
from torch_ir.targets.stablehlo.rules.rule_table import add, lowers


def _filled(hlo: Builder, made: Made, **arguments: Any) -> Value:
    """Fill with the argument `fill_value` or `value`, or with zeros; memory that torch leaves undefined is zeros."""
    value = arguments.get("fill_value", arguments.get("value", 0))
    if isinstance(value, (Value, Expr)):
        return to_shape(hlo, operand(hlo, value, made[0].dtype), made[0])
    return hlo.full(value, made[0].shape, made[0].dtype)


for _op in (
    "full.default", "full_like.default", "new_full.default", "zeros.default", "zeros_like.default", "new_zeros.default",
    "zero.default", "fill.Scalar", "fill.Tensor", "empty.memory_format", "empty_like.default", "new_empty.default",
    "empty_strided.default", "new_empty_strided.default", "empty_permuted.default",
):  # fmt: skip
    add(f"aten.{_op}", _filled)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(hlo: Builder, made: Made, **_: Any) -> Value:
    return hlo.full(1, made[0].shape, made[0].dtype)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(hlo: Builder, made: Made, s: Any, **_: Any) -> Value:
    return operand(hlo, s, made[0].dtype)


@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(hlo: Builder, made: Made, end: Any, start: Any = 0, step: Any = 1, **_: Any) -> Value:
    """start + i * step, in double precision for fractions, as torch computes it."""
    dtype, shape = made[0].dtype, made[0].shape
    between = "float64" if is_float(dtype) else "int64"
    value = hlo.iota(shape, 0, between)
    if step != 1:
        value = hlo.pointwise("multiply", value, operand(hlo, step, between))
    if start != 0:
        value = hlo.pointwise("add", value, operand(hlo, start, between))
    return hlo.convert(value, dtype)


@lowers("aten.eye.default", "aten.eye.m")
def eye(hlo: Builder, made: Made, **_: Any) -> Value:
    rows, columns = (hlo.iota(made[0].shape, dim) for dim in (0, 1))
    return hlo.convert(hlo.compare("EQ", rows, columns), made[0].dtype)


def _triangle(is_upper: bool, hlo: Builder, made: Made, self: Value, diagonal: Any = 0) -> Value:
    """Zeros on one side of a diagonal, also in place of NaN."""
    last = len(self.shape) - 1
    shape = self.shape[-2:]
    rows, columns = hlo.iota(shape, 0), hlo.iota(shape, 1)
    moved = hlo.pointwise("add", rows, operand(hlo, diagonal, rows.dtype)) if diagonal else rows
    kept = hlo.compare("GE" if is_upper else "LE", columns, moved)
    return hlo.select(hlo.broadcast(kept, self.shape, [last - 1, last]), self, hlo.like(self, 0))


add("aten.triu.default", partial(_triangle, True))
add("aten.tril.default", partial(_triangle, False))
