"""Functions in every dtype in which a second operator shows the precision and width of the first.

A runtime that computes int8 in 32 bits, float64 with 32-bit constants, or leaves out a conversion returns the right
result for one operator, converted at the end, and another one for a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # as everyone calls it

from tests.backend_sweep.cases import Case, made_case
from tests.backend_sweep.functions import Function

INTEGERS = ("int8", "int16", "int32", "uint8", "int64")
FLOATS = ("float64", "bfloat16", "float16", "float32")
SHAPE = (4, 6)
# each with two tensors of a dtype
WHOLE: dict[str, Callable[..., Any]] = {
    "sum, compared": lambda x, y: (x + y > x, x - y < x, x + y == y),
    "sum, halved": lambda x, y: (torch.div(x + y, 2, rounding_mode="floor"), (x + y) >> 1),
    "sum, remainder": lambda x, y: ((x + y) % 7, torch.fmod(x - y, 7)),
    "sum, divided": lambda x, y: (x + y) / 2,
    "sum, widened": lambda x, y: ((x + y).to(torch.int64) * 2, (x - y).float()),
    "product, widened": lambda x, y: ((x * y).to(torch.int64), (x * x).float().sqrt()),
    "negation, compared": lambda x, y: (-x < 0, -x > y),
    "magnitude, compared": lambda x, y: (x.abs() > y, x.abs() / 2),
    "square, compared": lambda x, y: (x**2 > y, x.square() - y > 0),
    "sum, maximum": lambda x, y: (torch.maximum(x + y, x), torch.minimum(x - y, y)),
    "sum, extremes": lambda x, y: ((x + y).amax(1), (x + y).argmax(1), (x - y).amin(0)),
    "sum, sorted": lambda x, y: (x + y).sort(-1)[0],
    "sum, clamped": lambda x, y: ((x + y).clamp(-100, 100), (x * 3).clamp(max=90)),
    "sum, chosen": lambda x, y: torch.where(x + y > 0, x, y),
    "sum, reduced": lambda x, y: ((x + y).sum(1), (x + y).prod(0), (x - y).cumsum(1), (x + y).float().mean()),
    "sum, bits": lambda x, y: (~(x + y), (x + y) & 15, (x - y) | 64, (x + y) ^ y),
    "sum, true or false": lambda x, y: ((x + y).bool(), (x + y).any(0), (x - y).logical_not()),
    "shifted to and fro": lambda x, y: ((x << 2) >> 2, (x << 3).to(torch.int64)),
    "product of matrices": lambda x, y: ((x @ y.t()) > 0, (x @ y.t()).to(torch.int64)),
    "narrowed": lambda x, y: (x.to(torch.int8).to(torch.int64), x.to(torch.uint8) > 3, x.to(torch.int16) + y),
    "scalars beyond": lambda x, y: (x + 300 > y, x * 1000 > y, x - 70000 < y),
    "sum, scattered": lambda x, y: x.index_put((torch.tensor([0, 0, 2]),), y[:3], accumulate=True) > x,
    "sum, padded": lambda x, y: F.pad(x + y, (1, 1), value=3) > 0,
    "sum, as float": lambda x, y: ((x + y) * 0.5, (x + y) + 0.5, torch.exp2((x - y) / 64)),
}
REAL: dict[str, Callable[..., Any]] = {
    "rounded to half": lambda x, y: (x.to(torch.bfloat16).to(x.dtype), x.half().to(x.dtype) - x),
    "rounded to 32 bits": lambda x, y: (x.to(torch.float32).to(x.dtype), x.double().float().to(x.dtype) + y),
    "constants": lambda x, y: (x * 0.1 + 0.3, x - 1 / 3, 0.7 - x, x / 0.3, 0.3 / (x.abs() + 0.1)),
    "powers": lambda x, y: (x.abs() ** 0.3, 0.7**x, (x.abs() + 0.1).rsqrt(), x.abs().pow(1 / 3)),
    "bounds": lambda x, y: (x.clamp(0.1, 0.7), x.clamp(min=-0.3), F.hardtanh(x, -0.1, 0.7), F.threshold(x, 0.1, 0.3)),
    "comparisons": lambda x, y: (x > 0.1, x * 0.1 == y * 0.1, x + 1e-9 > x, x.isclose(x + 1e-6)),
    "fills": lambda x, y: (x.masked_fill(x > 0, 0.1), torch.where(x > 0, x, 0.3), torch.full_like(x, 0.1) + x),
    "ranges": lambda x, y: (torch.linspace(0, 1, 6, dtype=x.dtype) + x, torch.arange(0, 0.6, 0.1, dtype=x.dtype) * x),
    "slopes": lambda x, y: (F.leaky_relu(x, 0.01), F.elu(x, 0.3), F.celu(x, 0.7), F.selu(x)),
    "hard activations": lambda x, y: (F.hardsigmoid(x), F.hardswish(x), F.softshrink(x, 0.1), F.hardshrink(x, 0.1)),
    "soft activations": lambda x, y: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x, 0.3)),
    "sigmoids": lambda x, y: (F.logsigmoid(x), F.tanhshrink(x), F.softsign(x), x.logit(0.1), F.glu(x)),
    "products": lambda x, y: (torch.addmm(x[:, :4], x, y.t(), alpha=0.1, beta=0.3), x @ y.t() * 0.1),
    "batched products": lambda x, y: torch.baddbmm(x[None, :, :4], x[None], y.t()[None], alpha=0.1, beta=0.3),
    "vector products": lambda x, y: (torch.addmv(x[:, 0], x, y[0], alpha=0.1), torch.addr(x, y[:, 0], y[0], alpha=0.1)),
    "scaled sums": lambda x, y: (torch.add(x, y, alpha=0.1), torch.sub(x, y, alpha=0.3), x.lerp(y, 0.1)),
    "scaled quotients": lambda x, y: (x.addcmul(x, y, value=0.1), x.addcdiv(x, y.abs() + 1, value=0.1)),
    "layer norm": lambda x, y: (F.layer_norm(x, (6,), eps=1e-3), F.layer_norm(x, (6,), y[0], y[1])),
    "other norms": lambda x, y: (F.group_norm(x[None], 2, eps=1e-3), F.instance_norm(x[None], eps=1e-3)),
    "batch norm": lambda x, y: F.batch_norm(x, y[0], y[1].abs() + 0.1, y[2], y[3], eps=1e-3),
    "lengths": lambda x, y: (F.normalize(x, eps=1e-3), x.norm(p=3), F.cosine_similarity(x, y), torch.dist(x, y, 1.5)),
    "root mean square": lambda x, y: (F.rms_norm(x, (6,), eps=1e-3), F.local_response_norm(x[None], 2, alpha=0.1)),
    "spread": lambda x, y: (x.var(1), x.std(0), x.logsumexp(1), x.mean(0), (x * 0.1).softmax(1)),
    "losses": lambda x, y: (F.huber_loss(x, y, delta=0.3), F.smooth_l1_loss(x, y, beta=0.3), F.mse_loss(x, y)),
    "margins": lambda x, y: (F.margin_ranking_loss(x, y, y.sign(), 0.1), F.hinge_embedding_loss(x, y.sign(), 0.3)),
    "resized": lambda x, y: F.interpolate(x[None], scale_factor=1.7),
    "resized smoothly": lambda x, y: F.interpolate(x[None, None], (5, 9), mode="bilinear"),
    "pooled": lambda x, y: (F.avg_pool1d(x[None], 3, 2), F.lp_pool1d(x[None], 3.0, 2)),
    "rounded": lambda x, y: ((x * 10).round(decimals=1), torch.div(x, 0.3, rounding_mode="floor"), x % 0.3),
    "angles": lambda x, y: (x.deg2rad(), x.rad2deg(), torch.atan2(x, y), x.sinc(), torch.hypot(x, y)),
    "logarithms": lambda x, y: ((x.abs() + 1).log2(), (x.abs() + 1).log10(), x.abs().log1p(), torch.logaddexp(x, y)),
    "error functions": lambda x, y: (x.erf(), x.erfc(), torch.special.ndtr(x), x.abs().lgamma(), x.expm1()),
}  # fmt: skip


def chain_cases(
    part: int = 0, parts: int = 1, dtypes: Sequence[str] = (*INTEGERS, *FLOATS), chosen: Sequence[str] | None = None
) -> Iterator[Case]:
    """One of several equal parts of the functions in each of these dtypes, or those that are chosen by name."""
    for dtype in dtypes:
        table = WHOLE if dtype in INTEGERS else REAL
        for name, function in list(table.items())[part::parts]:
            if chosen is not None and name not in chosen:
                continue
            draw = torch.Generator().manual_seed(0)
            given = [_drawn(dtype, draw) for _ in range(2)]
            case = made_case(f"{name} {dtype}", name, dtype, Function(function).eval(), given)
            if case is not None:
                yield case


def _drawn(dtype: str, draw: torch.Generator) -> torch.Tensor:
    """Ordinary numbers; of small integers, sums leave the range."""
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(SHAPE, generator=draw, dtype=torch.float64).to(kind)
    limits = torch.iinfo(kind)
    return torch.randint(max(limits.min, -30000), min(limits.max, 30000) + 1, SHAPE, generator=draw).to(kind)
