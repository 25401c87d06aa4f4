"""Products of matrices."""

from __future__ import annotations

from typing import Any

from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, binary, to_shape
from torch_ir.targets.stablehlo.rules.rule_table import lowers


def dot(hlo: Builder, left: Value, right: Value, batch: int, sides: tuple[int, int]) -> Value:
    """Contract one dimension of each operand; the first `batch` dimensions of both are kept.

    Half-precision numbers are multiplied and added in float32.
    """
    left, right = hlo.wide(left), hlo.wide(right)
    names = ("lhs_batching_dimensions", "rhs_batching_dimensions")
    kept = ", ".join(f"{name} = [{', '.join(map(str, range(batch)))}]" for name in names)
    numbers = f"{kept}, lhs_contracting_dimensions = [{sides[0]}], rhs_contracting_dimensions = [{sides[1]}]"
    rest = [
        size
        for value, side in zip((left, right), sides, strict=True)
        for at, size in enumerate(value.shape)
        if at >= batch and at != side
    ]
    shape = (*left.shape[:batch], *rest)
    return hlo.emit(
        "dot_general", [left, right], shape, left.dtype, f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
    )


def _product(hlo: Builder, left: Value, right: Value, batch: int) -> Value:
    """Return a product of matrices, or of each two of a batch."""
    return dot(hlo, left, right, batch, (batch + 1, batch))


@lowers("aten.mm.default", "aten.bmm.default")
def matrix_product(hlo: Builder, made: Made, self: Value, mat2: Value) -> Value:
    return hlo.convert(_product(hlo, self, mat2, len(self.shape) - 2), made[0].dtype)


@lowers("aten.dot.default")
def vector_product(hlo: Builder, made: Made, self: Value, tensor: Value) -> Value:
    return hlo.convert(dot(hlo, self, tensor, 0, (0, 0)), made[0].dtype)


@lowers("aten.mv.default")
def mv(hlo: Builder, made: Made, self: Value, vec: Value) -> Value:
    return hlo.convert(dot(hlo, self, vec, 0, (1, 0)), made[0].dtype)


def _plus(hlo: Builder, made: Made, self: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """Return beta * self + alpha * product; with beta 0, self is ignored."""
    if alpha != 1:
        product = binary(hlo, "multiply", product, alpha, product.dtype)
    if beta != 0:
        added = hlo.convert(self, product.dtype)
        added = added if beta == 1 else binary(hlo, "multiply", added, beta, added.dtype)
        product = hlo.pointwise("add", hlo.broadcast(added, product.shape), product)
    return to_shape(hlo, product, made[0])


@lowers("aten.addmm.default")
def addmm(hlo: Builder, made: Made, self: Value, mat1: Value, mat2: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    return _plus(hlo, made, self, _product(hlo, mat1, mat2, 0), beta, alpha)


@lowers("aten.baddbmm.default")
def baddbmm(
    hlo: Builder, made: Made, self: Value, batch1: Value, batch2: Value, beta: Any = 1, alpha: Any = 1
) -> Value:
    return _plus(hlo, made, self, _product(hlo, batch1, batch2, 1), beta, alpha)


@lowers("aten.linear.default")
def linear(hlo: Builder, made: Made, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """Contract the last dimension of both; the weight needs no transposition."""
    product = dot(hlo, input, weight, 0, (len(input.shape) - 1, len(weight.shape) - 1))
    if bias is not None:
        product = hlo.pointwise("add", product, hlo.convert(bias, product.dtype))
    return to_shape(hlo, product, made[0])
