"""Pieces of random graphs that look like layers: norms, activations, attention, convolutions, products."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.random_draft import FLOATS, Draft
from torch_ir.ir import Dtype, TensorMeta

END = 9223372036854775807  # of a slice that has none


def softmax(d: Draft) -> None:
    x = d.floating(least=1)
    kind = d.draw.choice(("whole", "log", "spelled", "broken"))
    if kind in ("whole", "log"):
        d.op("softmax.int" if kind == "whole" else "log_softmax.int", x, d.dim(x))
        return
    top = d.op("amax", x, [-1], kind == "spelled")
    shifted = d.op("exp", d.op("sub.Tensor", x, top))
    d.op("div.Tensor", shifted, d.op("sum.dim_IntList", shifted, [-1 if d.chance(0.8) else 0], True))


def _affine(d: Draft, x: TensorMeta, made: TensorMeta) -> TensorMeta:
    size = d.shape(x)[-1:]
    if d.chance(0.8):
        made = d.op("mul.Tensor", *_either_way(d, made, d.weight(size, made.dtype)))
    if d.chance(0.5):
        made = d.op("add.Tensor", *_either_way(d, made, d.weight(size, made.dtype)))
    return made


def _either_way(d: Draft, one: TensorMeta, other: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    return (one, other) if d.chance(0.7) else (other, one)


def _last_is_fixed(t: TensorMeta) -> bool:
    return t.dtype in FLOATS and len(t.shape) > 0 and isinstance(t.shape[-1], int)


def layer_norm(d: Draft) -> None:
    """Layer norm, whole or spelled out, with all that can be a little different."""
    x = d.pick(_last_is_fixed)
    if d.chance(0.4):
        weight = d.weight(d.shape(x)[-1:], x.dtype) if d.chance(0.7) else None
        made = d.op(
            "layer_norm", x, x.shape[-1:], weight, d.weight(d.shape(x)[-1:], x.dtype) if d.chance(0.5) else None
        )
        if d.chance(0.4):
            d.op("mul.Tensor", made, d.weight(d.shape(x)[-1:], x.dtype))
        return
    keep = d.chance(0.9)
    centred = d.op("sub.Tensor", x, d.op("mean.dim", x, [-1], keep))
    if d.chance(0.5):
        variance = d.op("mean.dim", d.op("pow.Tensor_Scalar", centred, d.draw.choice((2, 2, 3))), [-1], keep)
    else:
        variance = d.op("var.correction", x, [-1], correction=d.draw.choice((0, 0, 1)), keepdim=keep)
    shifted = d.op("add.Tensor", variance, d.draw.choice((1e-5, 1e-5, 0.1)))
    scaled = (
        d.op("mul.Tensor", *_either_way(d, centred, d.op("rsqrt", shifted)))
        if d.chance(0.5)
        else d.op("div.Tensor", centred, d.op("sqrt", shifted))
    )
    _affine(d, x, scaled)


def rms_norm(d: Draft) -> None:
    """RMS norm as language models spell it, with and without a wide middle."""
    x = wide = d.pick(_last_is_fixed)
    if d.chance(0.5):
        wide = d.op("_to_copy", x, dtype=Dtype("float32"))
    if d.chance(0.2):
        d.op("rms_norm", x, x.shape[-1:], d.weight(d.shape(x)[-1:], x.dtype))
        return
    mean = d.op("mean.dim", d.op("pow.Tensor_Scalar", wide, 2), [-1], True)
    scale = d.op("rsqrt", d.op("add.Tensor", mean, d.draw.choice((1e-6, 1e-5))))
    other = wide if d.chance(0.9) else x
    scaled = d.op("mul.Tensor", *_either_way(d, other, scale))
    if d.chance(0.5):
        scaled = d.op("_to_copy", scaled, dtype=Dtype(x.dtype))
    made = _affine(d, x, scaled)
    if d.chance(0.3):
        d.op("linear", made, d.weight([4, *d.shape(x)[-1:]], made.dtype))


def activation(d: Draft) -> None:
    """GELU, SiLU and their kin, spelled out, some with a wrong number or a wrong operand."""
    x = d.floating()
    other = x if d.chance(0.85) else d.floating()
    kind = d.draw.choice(("erf", "tanh", "silu", "quick", "swiglu", "softplus", "hardswish"))
    if kind == "erf":
        half = d.op("mul.Tensor", x, 0.5)
        inner = d.op("mul.Tensor", other, d.draw.choice((math.sqrt(0.5), math.sqrt(0.5), 0.7)))
        d.op("mul.Tensor", half, d.op("add.Tensor", d.op("erf", inner), 1.0))
    elif kind == "tanh":
        cube = d.op("pow.Tensor_Scalar", other, 3)
        inner = d.op("add.Tensor", x, d.op("mul.Tensor", cube, d.draw.choice((0.044715, 0.044715, 0.05))))
        outer = d.op("tanh", d.op("mul.Tensor", inner, math.sqrt(2 / math.pi)))
        d.op("mul.Tensor", d.op("mul.Tensor", x, 0.5), d.op("add.Tensor", outer, 1.0))
    elif kind == "silu":
        d.op("mul.Tensor", *_either_way(d, x, d.op("sigmoid", other)))
    elif kind == "quick":
        d.op("mul.Tensor", x, d.op("sigmoid", d.op("mul.Tensor", other, 1.702)))
    elif kind == "swiglu":
        d.op("mul.Tensor", d.op("silu", x), d.floating())
    elif kind == "softplus":
        d.op("log", d.op("add.Tensor", d.op("exp", x), 1))
    else:
        d.op("mul.Tensor", x, d.op("div.Tensor", d.op("clamp", d.op("add.Tensor", other, 3), 0, 6), 6))


def rotary(d: Draft) -> None:
    x = d.pick(lambda t: _last_is_fixed(t) and len(t.shape) >= 2 and d.shape(t)[-1] == 4)
    one, two = d.op("slice.Tensor", x, -1, 0, 2), d.op("slice.Tensor", x, -1, 2, END)
    turned = d.op("cat", [d.op("neg", two), one] if d.chance(0.85) else [two, d.op("neg", one)], -1)
    angles = d.weight([4], x.dtype)
    cos, sin = d.op("cos", angles), d.op("sin", angles)
    d.op("add.Tensor", d.op("mul.Tensor", x, cos), d.op("mul.Tensor", turned, sin))


def attention(d: Draft) -> None:
    """Attention spelled out, from projections of one tensor or of two, or as one operator."""
    x = d.pick(lambda t: _last_is_fixed(t) and len(t.shape) == 3 and d.shape(t)[-1] == 4)
    source = x if d.chance(0.7) else d.pick(lambda t: t.shape == x.shape and t.dtype == x.dtype)
    q, k, v = (
        _heads(d, d.op("linear", y, d.weight([4, 4], x.dtype), _bias(d, 4, x.dtype))) for y in (x, source, source)
    )
    if d.chance(0.3):
        made = d.op("scaled_dot_product_attention", q, k, v, is_causal=d.chance(0.5))
    else:
        if d.chance(0.3):
            q = d.op("mul.Tensor", q, 0.5)
        scores = d.op("matmul", q, d.op("transpose.int", k, -2, -1))
        if d.chance(0.7):
            scores = d.op(d.draw.choice(("mul.Tensor", "div.Tensor")), scores, d.draw.choice((math.sqrt(2), 0.5)))
        if d.chance(0.4):
            mask = d.constant(torch.tensor([[[0.0, -1e4]]])) if d.chance(0.3) else d.weight([1], x.dtype)
            scores = d.op("add.Tensor", scores, mask)
        chances = d.op("softmax.int", scores, -1 if d.chance(0.9) else -2)
        if d.chance(0.3):
            chances = d.op("dropout", chances, 0.1, d.chance(0.3))
        made = d.op("matmul", chances, v)
    if d.chance(0.8):
        back = d.op("contiguous", d.op("transpose.int", made, 1, 2))
        d.op("linear", d.op("view", back, d.sizes(x)), d.weight([4, 4], x.dtype))


def _heads(d: Draft, x: TensorMeta) -> Any:
    return d.op("transpose.int", d.op("view", x, [*d.sizes(x)[:2], 2, 2]), 1, 2)


def _bias(d: Draft, size: int, dtype: str) -> TensorMeta | None:
    return d.weight([size], dtype) if d.chance(0.6) else None


def convolution(d: Draft) -> None:
    """A convolution, followed by foldable operators; sometimes with a second consumer, or something in between."""
    x = d.pick(lambda t: t.dtype in FLOATS and len(t.shape) in (3, 4) and t.shape[1] == 4)
    kind, spatial = ("conv2d", [3, 3]) if len(x.shape) == 4 else ("conv1d", [3])
    spatial = d.draw.choice((spatial, [1] * len(spatial)))
    groups = d.draw.choice((1, 1, 2, 4))
    padding = d.draw.choice((0, 1, 1))
    if d.chance(0.1):
        x = d.op("constant_pad_nd", x, [1, 1] * len(spatial), d.draw.choice((0, 0.0, 1)))
    weight = d.weight([4, 4 // groups, *spatial], x.dtype)
    stride = d.draw.choice((1, 1, 2))
    made = d.op(
        kind,
        x,
        weight,
        _bias(d, 4, x.dtype),
        [stride] * len(spatial),
        [padding] * len(spatial),
        [1] * len(spatial),
        groups,
    )
    for _ in range(d.draw.choice((1, 2, 2, 3))):
        made = _after_convolution(d, made)
    if d.chance(0.2):
        d.op("add.Tensor", made, d.pick(lambda t: t.shape == made.shape and t.dtype == made.dtype))


def _after_convolution(d: Draft, made: TensorMeta) -> Any:
    rank = len(made.shape)
    per_channel = [4, *[1] * (rank - 2)]
    shapes: tuple[list[int], ...] = ([1, *per_channel], per_channel, [1], [], d.shape(made)[-1:])
    return d.draw.choice((
        lambda: batch_norm(d, made),
        lambda: batch_norm(d, made),
        lambda: d.op("relu", made),
        lambda: d.op("mul.Tensor", *_either_way(d, made, d.weight(d.draw.choice(shapes), made.dtype))),
        lambda: d.op("add.Tensor", *_either_way(d, made, d.weight(d.draw.choice(shapes), made.dtype))),
        lambda: d.op("mul.Tensor", made, d.number()),
        lambda: d.op("div.Tensor", made, d.weight(d.draw.choice(shapes), made.dtype)),
        lambda: d.op("sub.Tensor", *_either_way(d, made, d.weight(d.draw.choice(shapes), made.dtype))),
        lambda: d.op("neg", made),
        lambda: d.op("clone", made),
    ))()  # fmt: skip


def batch_norm(d: Draft, x: TensorMeta | None = None) -> Any:
    """Batch norm over four channels, in inference, or in training as a function that returns new statistics."""
    x = x or d.pick(lambda t: t.dtype in FLOATS and len(t.shape) >= 2 and t.shape[1] == 4)
    weight, bias, mean, variance = (d.weight([4], x.dtype) for _ in range(4))
    if d.steady:  # a variance is positive
        variance = d.op("add.Tensor", d.op("abs", variance), 0.5)
    weights = (weight, bias) if d.chance(0.8) else (None, None)
    if d.chance(0.1) and x.dtype in ("float32", "float64"):
        return d.op("_native_batch_norm_legit_functional", x, *weights, mean, variance, True, 0.1, 1e-5)[0]
    if d.chance(0.1):
        return d.op("batch_norm", x, *weights, None, None, True, 0.1, 1e-5, False)
    return d.op("batch_norm", x, *weights, mean, variance, False, 0.1, d.draw.choice((1e-5, 1e-3)), False)


def standalone_norm(d: Draft) -> None:
    made = batch_norm(d)
    if d.chance(0.4):
        d.op("conv2d", made, d.weight([4, 4, 1, 1], made.dtype))
    elif d.chance(0.3):
        batch_norm(d, made)


def product(d: Draft) -> None:
    """Linear layers and matrix products, alone, in sequence, or several of one tensor; then foldable operators."""
    x = d.pick(lambda t: _last_is_fixed(t) and d.shape(t)[-1] == 4)
    for _ in range(d.draw.choice((1, 1, 2, 3))):
        made = _product(d, x)
        if d.chance(0.4):
            made = d.op(
                d.draw.choice(("mul.Tensor", "add.Tensor", "sub.Tensor", "div.Tensor")),
                *_either_way(
                    d,
                    made,
                    d.weight(d.draw.choice(([4], [1], [], d.shape(made))) if made.is_static else [4], made.dtype),
                ),
            )
        if d.chance(0.4):
            x = made


def _product(d: Draft, x: TensorMeta) -> Any:
    size = d.draw.choice((4, 4, 8))
    kind = d.draw.choice(("linear", "linear", "addmm", "mm", "matmul", "t", "baddbmm"))
    if kind == "linear":
        made = d.op("linear", x, d.weight([size, 4], x.dtype), _bias(d, size, x.dtype))
    elif kind == "addmm":
        bias = d.weight(d.draw.choice(([size], [1, size])), x.dtype)
        made = d.op(
            "addmm",
            bias,
            x,
            d.weight([4, size], x.dtype),
            alpha=d.draw.choice((1, 1, 2)),
            beta=d.draw.choice((1, 1, 0)),
        )
    elif kind == "mm":
        made = d.op("mm", x, d.weight([4, size], x.dtype))
    elif kind == "t":
        made = d.op("matmul", x, d.op("t", d.weight([size, 4], x.dtype)))
    elif kind == "baddbmm":
        made = d.op("bmm", x, d.op("transpose.int", x, 1, 2))
        return made if d.chance(0.5) else d.op("bmm", made, x)
    else:
        made = d.op("matmul", x, d.weight([4, size], x.dtype))
    return made if size == 4 else d.op("slice.Tensor", made, -1, 0, 4)
