"""Blocks of one or a few operators: activations, arithmetic, reductions, products, sorting, casts, Fourier."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.random_models.block import ALIKE, KINDS, Body, Draw, Takes, add, block, floats, function

_ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "hardtanh",
    "hardswish", "hardsigmoid", "hardshrink", "softshrink", "tanhshrink", "logsigmoid", "sigmoid", "tanh", "rrelu",
    "threshold_05",
)  # fmt: skip
_FUNCTIONS = (
    "exp", "expm1", "log1p", "sqrt", "rsqrt", "sin", "cos", "atan", "asinh", "erf", "floor", "round", "trunc", "frac",
    "sign", "reciprocal", "digamma", "sinc", "nan_to_num", "isfinite", "isnan", "logit", "exp2", "i0", "deg2rad",
)  # fmt: skip


def _threshold_05(x: Tensor) -> Tensor:
    return F.threshold(x, 0.1, 20.0)


for _name in _ACTIVATIONS:
    function(_name, __name__, _threshold_05 if _name == "threshold_05" else getattr(F, _name), floats())
for _name in _FUNCTIONS:
    function(_name, __name__, getattr(torch, _name), floats())


@block(floats(2))
def parametric_relu(draw: Draw, x: Tensor) -> Body:
    return torch.nn.PReLU(draw.choice((1, x.shape[1])), dtype=x.dtype)


@block(floats(0))
def gelu_tanh(draw: Draw, x: Tensor) -> Body:
    return torch.nn.GELU("tanh")


@block(floats(1, even=-1))
def glu(draw: Draw, x: Tensor) -> Body:
    return torch.nn.GLU(-1)


def _along(name: str, *functions: Any, takes: Takes | None = None) -> None:
    """A block that calls one of these functions along a dimension."""

    def make(draw: Draw, x: Tensor) -> Body:
        chosen, dim = draw.choice(functions), draw.dim(x)
        return lambda x: chosen(x, dim)

    add(name, __name__, make, takes or floats(1))


_along("softmax", F.softmax, F.log_softmax, F.softmin)
_along("cumulative", torch.cumsum, torch.cumprod, torch.logcumsumexp, lambda x, dim: torch.cummax(x, dim).values)
_along("sorting", torch.sort, torch.argsort, lambda x, dim: torch.msort(x), takes=Takes("real", 1))
_along("extremes", torch.max, torch.min, torch.aminmax, lambda x, dim: torch.median(x, dim), takes=Takes("real", 1))
_along("best", torch.argmax, torch.argmin, takes=Takes("real", 1))
_along("norms", lambda x, d: torch.linalg.vector_norm(x, 2, d), lambda x, d: x.norm(p=1, dim=d, keepdim=True))
_along("differences", lambda x, dim: torch.diff(x, dim=dim), takes=Takes("number", 1))


@block(Takes("real", 1))
def topk(draw: Draw, x: Tensor) -> Body:
    k, largest = draw.choice((1, 2)), draw.chance(0.5)
    return lambda x: torch.topk(x, k, -1, largest=largest)


@block(Takes("number"))
def reduced(draw: Draw, x: Tensor) -> Body:
    """Reduce one or several dimensions, or all, kept or not."""
    chosen = draw.choice((torch.sum, torch.mean, torch.amax, torch.var, torch.prod, torch.logsumexp, torch.std))
    if draw.chance(0.3) or not x.dim():
        return lambda x: torch.sum(x)
    dim, keep = draw.dim(x), draw.chance(0.5)
    return lambda x: chosen(x, dim, keepdim=keep)


@block(Takes("any"))
def any_or_all(draw: Draw, x: Tensor) -> Body:
    dim = draw.dim(x) if x.dim() else None
    return draw.choice((lambda x: x.any(), lambda x: x.all(), lambda x: x.any(dim) if dim else x.bool()))


# -- two tensors ------------------------------------------------------------------------------------------------------


@block(Takes("number"), ALIKE)
def combined(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return draw.choice((torch.add, torch.sub, torch.mul, torch.div, lambda x, y: torch.add(x, y, alpha=2)))


@block(Takes("real"), ALIKE)
def compared(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return draw.choice((torch.maximum, torch.minimum, torch.gt, torch.le, torch.eq, torch.ne, torch.isclose))


@block(Takes("real"), Takes("real"))
def promoted(draw: Draw, x: Tensor, y: Tensor) -> Body:
    """Combine tensors of two dtypes; the second is a scalar, which broadcasts."""
    chosen = draw.choice((torch.add, torch.mul, torch.sub, torch.maximum))
    return lambda x, y: chosen(x, y.flatten()[0] if y.numel() else y.sum())


@block(floats(), ALIKE)
def mixed(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return draw.choice((
        torch.atan2, torch.fmod, torch.remainder, torch.pow, torch.hypot, torch.logaddexp, torch.copysign, torch.xlogy,
        lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.addcmul(x, x, y, value=0.5),
        lambda x, y: torch.addcdiv(x, x, y), F.mse_loss, F.smooth_l1_loss,
    ))  # fmt: skip


@block(floats(1), ALIKE)
def similarity(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return draw.choice((lambda x, y: F.cosine_similarity(x, y, -1), lambda x, y: F.pairwise_distance(x, y)))


@block(Takes("number"))
def with_numbers(draw: Draw, x: Tensor) -> Body:
    """Python numbers on either side."""
    number = draw.number(x)
    return draw.choice((
        lambda x: x * number + 1, lambda x: number - x, lambda x: x / 3, lambda x: x**2, lambda x: 2 // (x.abs() + 1),
    ))  # fmt: skip


@block(Takes("real"))
def clamped(draw: Draw, x: Tensor) -> Body:
    return draw.choice((lambda x: x.clamp(-1, 2), lambda x: x.clamp(min=0), lambda x: x.clamp(max=torch.tensor(1))))


# -- products ---------------------------------------------------------------------------------------------------------


@block(floats(2))
def gram(draw: Draw, x: Tensor) -> Body:
    return draw.choice((lambda x: x @ x.mT, lambda x: torch.matmul(x.transpose(-1, -2), x)))


@block(floats(3, 3))
def einsum(draw: Draw, x: Tensor) -> Body:
    equation = draw.choice(("bij,bkj->bik", "bij,bij->b", "bij,bij->ij", "bij,bkj->bk", "bij,bij->jbi"))
    return lambda x: torch.einsum(equation, x, x)


@block(floats(3, 3))
def batched_product(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: torch.bmm(x, x.transpose(1, 2)),
        lambda x: torch.baddbmm(x, torch.bmm(x, x.mT), x, beta=0.5),
        lambda x: torch.tensordot(x, x, dims=([2], [2])).sum(2),
        lambda x: torch.linalg.matmul(x.mT, x),
    ))  # fmt: skip


@block(floats(2, 2))
def flat_product(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: torch.addmm(x, x @ x.T, x, alpha=0.5), lambda x: torch.mv(x, x[0]), lambda x: torch.cdist(x, x),
        lambda x: torch.outer(x[0], x[:, 0]), lambda x: torch.kron(x, x[:1]), lambda x: x.T @ x,
    ))  # fmt: skip


# -- dtypes -----------------------------------------------------------------------------------------------------------


@block(Takes("real"))
def cast(draw: Draw, x: Tensor) -> Body:
    dtype = draw.choice((*KINDS["float"], *KINDS["float"], *KINDS["int"]))
    if x.is_floating_point() and not dtype.is_floating_point:  # out-of-range values are undefined
        return lambda x: x.nan_to_num(0.0, 1.0, -1.0).clamp(0, 100).to(dtype)
    return draw.choice((lambda x: x.to(dtype), lambda x: x.type(dtype), lambda x: x.to("cpu", dtype, copy=True)))


@block(floats())
def through_float8(draw: Draw, x: Tensor) -> Body:
    narrow = draw.choice((torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz))
    keep = draw.chance(0.3)
    return lambda x: (x.to(narrow), x.to(narrow).to(x.dtype)) if keep else x.to(narrow).to(torch.float32)


@block(Takes("wide"))
def reinterpreted(draw: Draw, x: Tensor) -> Body:
    other = {torch.float32: torch.int32, torch.float64: torch.int64}[x.dtype]
    return lambda x: x.contiguous().view(other) >> 3


@block(Takes("whole"))
def bits(draw: Draw, x: Tensor) -> Body:
    return draw.choice(
        (lambda x: ~x, lambda x: x & x.flip(0) if x.dim() else x, lambda x: x ^ (x == x), torch.logical_not)
    )


@block(Takes("int"))
def whole_numbers(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: x // 3, lambda x: x % 4 - 1, lambda x: x << 1, lambda x: torch.div(x, 2, rounding_mode="trunc"),
        lambda x: x.abs().to(torch.float32) / 2, lambda x: torch.bincount(x.flatten().long() % 5, minlength=5),
    ))  # fmt: skip


@block(Takes("wide", 1))
def fake_quantised(draw: Draw, x: Tensor) -> Body:
    def forward(x: Tensor) -> Any:
        scale = x.abs().amax().clamp(min=1e-3) / 127
        whole = torch.round(x / scale).nan_to_num().clamp(-128, 127).to(torch.int8)
        return whole, whole.to(torch.int32) * whole.to(torch.int32) + 1, whole.to(x.dtype) * scale

    return forward


@block(Takes("wide", 1))
def packed_nibbles(draw: Draw, x: Tensor) -> Body:
    def forward(x: Tensor) -> Any:
        whole = (x.nan_to_num().clamp(-1, 1) * 7).to(torch.uint8) & 15
        packed = whole | (whole << 4)
        return torch.stack([packed & 15, packed >> 4], -1).to(torch.int8)

    return forward


# -- complex numbers --------------------------------------------------------------------------------------------------


@block(Takes("wide", 1))
def fourier(draw: Draw, x: Tensor) -> Body:
    norm = draw.choice((None, "ortho"))
    return draw.choice((
        lambda x: torch.fft.fft(x, norm=norm), lambda x: torch.fft.rfft(x, norm=norm),
        lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]), lambda x: torch.fft.fftshift(x),
    ))  # fmt: skip


@block(Takes("complex"))
def complex_parts(draw: Draw, x: Tensor) -> Body:
    return draw.choice((
        lambda x: (x.real, x.imag), lambda x: x.abs(), lambda x: x.angle(), lambda x: x.conj() * x,
        torch.view_as_real, lambda x: torch.conj(x), lambda x: x.conj().resolve_conj().imag + 1,
    ))  # fmt: skip


@block(Takes("wide"), ALIKE)
def made_complex(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return draw.choice((torch.complex, torch.polar, lambda x, y: x + 1j * y))


@block(Takes("complex", 1))
def complex_functions(draw: Draw, x: Tensor) -> Body:
    return draw.choice((torch.exp, lambda x: torch.fft.ifft(x), lambda x: x @ x.conj() if x.dim() == 1 else x * 2j))
