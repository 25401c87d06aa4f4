"""Pieces of random graphs: arithmetic, casts and comparisons, element by element."""

from __future__ import annotations

from typing import Any

import torch

from tests.random_draft import DTYPES, FLOATS, Draft
from torch_ir.ir import Dtype, TensorMeta
from torch_ir.ops.torch_types import TORCH_DTYPES

SMOOTH = (
    "neg", "relu", "abs", "sigmoid", "tanh", "sin", "cos", "silu", "gelu", "square", "softplus", "exp", "positive",
    "hardtanh", "sqrt", "rsqrt", "reciprocal", "log1p", "erf", "relu6", "leaky_relu", "elu", "expm1", "mish",
    "hardswish",
)  # fmt: skip
WITH_NUMBER = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "mul.Scalar", "add.Scalar", "rsub.Scalar", "div.Scalar",
    "sub.Scalar", "pow.Tensor_Scalar",
)  # fmt: skip
PAIRS = (
    ("neg", "neg"), ("relu", "relu"), ("exp", "log"), ("log", "exp"), ("abs", "abs"), ("reciprocal", "reciprocal"),
    ("square", "sqrt"), ("sqrt", "square"), ("conj_physical", "conj_physical"), ("logical_not", "logical_not"),
    ("relu", "abs"), ("neg", "abs"), ("bitwise_not", "bitwise_not"),
)  # fmt: skip
JUMPING = ("sign", "floor", "ceil", "round", "trunc", "logical_not", "isnan", "isinf", "signbit", "bitwise_not", "frac")


def unary(d: Draft) -> TensorMeta:
    made: TensorMeta = d.op(d.draw.choice(SMOOTH), d.pick())
    return made


def jumping(d: Draft) -> None:
    d.op(d.draw.choice(JUMPING), d.sharp())


def with_number(d: Draft) -> TensorMeta:
    """x + 0, x * 1, x / -1, 0 - x, x ** 1, also several in a row."""
    made = d.pick()
    for _ in range(d.draw.choice((1, 1, 2, 3))):
        name = d.draw.choice(WITH_NUMBER)
        made = d.op(name, made, d.number())
    return made


def with_alpha(d: Draft) -> None:
    made = d.pick()
    d.op(d.draw.choice(("add.Tensor", "sub.Tensor")), made, d.pick(), alpha=d.draw.choice((0, 1, 2, -1)))


def binary(d: Draft) -> TensorMeta:
    name = d.draw.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "atan2"))
    pick = d.sharp if name == "atan2" else d.pick  # it jumps between zeros of both signs
    made: TensorMeta = d.op(name, pick(), pick())
    return made


def integer_division(d: Draft) -> None:
    name = d.draw.choice(("floor_divide", "remainder.Tensor", "div.Tensor_mode", "fmod.Tensor"))
    more = {"rounding_mode": d.draw.choice(("floor", "trunc"))} if name == "div.Tensor_mode" else {}
    d.op(name, d.sharp(), d.sharp() if d.chance(0.5) else d.draw.choice((1, 2, -3, 1.0)), **more)


def _filled(d: Draft, shape: list[int], dtype: str) -> Any:
    """Return a tensor of one repeated number, as a constant or as an operator's result."""
    number = d.draw.choice((0, 1, -1, -0.0, 2))
    if d.chance(0.4):
        return d.constant(torch.full(shape, number, dtype=torch.float64).to(TORCH_DTYPES[dtype]))
    if number in (0, 1) and d.chance(0.5):
        return d.op("ones" if number else "zeros", shape, dtype=Dtype(dtype))
    if not shape and d.chance(0.5):
        return d.op("scalar_tensor", number, dtype=Dtype(dtype))
    return d.op("full", shape, number, dtype=Dtype(dtype))


def with_filled(d: Draft) -> None:
    """x + zeros and its kin, where the zeros may be of another dtype, or larger than x."""
    x = d.pick()
    sizes = d.shape(x)
    shapes = [[], [1], sizes[-1:], sizes, [2, *sizes], [1, *sizes]]
    shape = d.draw.choice(shapes if all(isinstance(dim, int) for dim in x.shape) else shapes[:2])
    other = _filled(d, shape, x.dtype if d.chance(0.7) else d.draw.choice(DTYPES))
    pair = (x, other) if d.chance(0.6) else (other, x)
    d.op(d.draw.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "pow.Tensor_Tensor")), *pair)


def with_itself(d: Draft) -> None:
    """x - x, x / x, x + x, maximum(x, x)."""
    x = d.pick()
    d.op(d.draw.choice(("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "eq.Tensor")), x, x)


def inverses(d: Draft) -> None:
    """exp(log(x)), neg(neg(x)), relu(relu(x)), and pairs that are not."""
    made = d.pick()
    for name in d.draw.choice(PAIRS):
        made = d.op(name, made)


def cast(d: Draft) -> TensorMeta:
    """Casts one after another: to the same dtype, to a wider one and back, to a narrower one and back."""
    made = d.sharp()
    kinds = FLOATS if d.steady and made.dtype in FLOATS and made not in d.exact else DTYPES
    for _ in range(d.draw.choice((1, 2, 2, 3))):
        dtype = Dtype(d.draw.choice((made.dtype, *kinds)))
        name = d.draw.choice(("to.dtype", "_to_copy", "to.dtype"))
        made = d.op(name, made, dtype=dtype)
        if d.chance(0.1):
            made = d.op("neg", made)
    return made


def float_cast(d: Draft) -> None:
    """Floating-point dtypes only: a narrow stretch between wide ones."""
    made = d.floating()
    dtype = made.dtype
    made = d.op("_to_copy", made, dtype=Dtype(d.draw.choice(FLOATS)))
    if d.chance(0.5):
        made = d.op(d.draw.choice(("relu", "neg", "sigmoid")), made)
    d.op("_to_copy", made, dtype=Dtype(dtype if d.chance(0.7) else d.draw.choice(FLOATS)))


def compare(d: Draft) -> None:
    """Comparisons, choices by them, and limits."""
    x, y = d.sharp(), d.sharp()
    test = d.op(
        d.draw.choice(("gt.Tensor", "eq.Tensor", "le.Tensor", "ne.Tensor")), x, y if d.chance(0.6) else d.number()
    )
    d.draw.choice((
        lambda: d.op("where.self", test, d.pick(), d.pick()),
        lambda: d.op("where.self", test, x, x),
        lambda: d.op("where.self", d.op("logical_not", test), x, y),
        lambda: d.op("where.ScalarOther", test, d.pick(), 0),
        lambda: d.op("masked_fill.Scalar", d.pick(), test, d.number()),
        lambda: d.op("logical_and", test, d.op("ones_like", test)),
        lambda: d.op("bitwise_and.Tensor", test, test),
    ))()  # fmt: skip


def clamp(d: Draft) -> None:
    made = d.pick()
    for _ in range(d.draw.choice((1, 2))):
        made = d.draw.choice((
            lambda x: d.op("clamp", x, d.draw.choice((None, -1, 0)), d.draw.choice((None, 1, 6, 0.5))),
            lambda x: d.op("clamp_min", x, 0),
            lambda x: d.op("relu", x),
            lambda x: d.op("hardtanh", x, 0.0, 6.0),
            lambda x: d.op("clamp_max", x, 6),
        ))(made)  # fmt: skip
