"""Pairs of consecutive operators, which runtimes may fuse: each producer at several shapes, before each consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # as everyone calls it
from torch import Tensor

from tests.backend_sweep.cases import Case, made_case
from tests.backend_sweep.functions import Function

Step = Callable[[Tensor], Tensor]
_WEIGHTS = torch.Generator().manual_seed(3)
SHAPES = ((6, 4), (2, 3, 4), (2, 8, 16), (2, 4, 6, 6), (1, 4, 6, 6), (2, 3, 4, 4, 4))


def _weight(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_WEIGHTS) / 3


def _reductions(rank: int) -> Iterator[tuple[str, Step]]:
    for dim in (*range(rank), (0, 1), (1, rank - 1)):
        for keepdim in (False, True):
            for name in ("sum", "mean", "amax", "logsumexp"):
                yield f"{name} of {dim}{', kept' if keepdim else ''}", partial(_reduced, name, dim, keepdim)
            if isinstance(dim, int):
                yield f"var of {dim}{', kept' if keepdim else ''}", partial(_reduced, "var", dim, keepdim)


def _reduced(name: str, dim: Any, keepdim: bool, x: Tensor) -> Tensor:
    made: Tensor = getattr(torch, name)(x, dim, keepdim=keepdim)
    return made


def layers(shape: tuple[int, ...]) -> Iterator[tuple[str, Step]]:
    """Operators on more than one element at a time, for this shape."""
    rank, last, channels = len(shape), shape[-1], shape[1]
    yield "linear", partial(F.linear, weight=_weight(5, last), bias=_weight(5))
    yield "matmul", lambda x: x @ x.transpose(-1, -2)
    yield "softmax", lambda x: x.softmax(-1)
    yield "softmax of 1", lambda x: x.softmax(1)
    yield "layer norm", lambda x: F.layer_norm(x, (last,))
    yield "cumsum", lambda x: x.cumsum(1)
    yield "transpose", lambda x: x.transpose(0, -1)
    yield "cat", lambda x: torch.cat([x, x * 2], 1)
    yield "slice", lambda x: x[:, 1:]
    yield "expand", lambda x: x[:, :1].expand(x.shape)
    yield "reshape", lambda x: x.reshape(-1, last)
    if rank >= 3:
        kernel = (3,) * (rank - 2)
        yield "convolution", partial(_convolution(rank), weight=_weight(6, channels, *kernel), padding=1)
        depthwise = _weight(channels, 1, *kernel)
        yield "depthwise convolution", partial(_convolution(rank), weight=depthwise, padding=1, groups=channels)
        yield "average pool", lambda x: (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 3](x, 2)
        yield "max pool", lambda x: (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 3](x, 2)
        yield "group norm", lambda x: F.group_norm(x, 1)
        yield "instance norm", F.instance_norm
        statistics = (_weight(channels), _weight(channels).abs() + 0.5)
        yield "batch norm", lambda x: F.batch_norm(x, *statistics, _weight(channels), _weight(channels))
    if rank == 4:
        yield "upsampling", lambda x: F.interpolate(x, scale_factor=2)
        yield "bilinear upsampling", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")


def _convolution(rank: int) -> Any:
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 3]


CONSUMERS: dict[str, Step] = {
    "/ 2": lambda y: y / 2,
    "/ 3.0": lambda y: y / 3.0,
    "3 /": lambda y: 3 / (y.abs() + 1),
    "* 2": lambda y: y * 2,
    "+ 1": lambda y: y + 1,
    "1 -": lambda y: 1 - y,
    "square": lambda y: y**2,
    "cube": lambda y: y**3,
    "root": lambda y: (y.abs() + 1).sqrt(),
    "relu": lambda y: y.relu(),
    "clamp": lambda y: y.clamp(-0.5, 0.5),
    "gelu": lambda y: F.gelu(y),
    "silu": lambda y: F.silu(y),
    "leaky relu": lambda y: F.leaky_relu(y, 0.1),
    "tanh": lambda y: y.tanh(),
    "round": lambda y: (y * 4).round(),
    "// 0.5": lambda y: y // 0.5,
    "% 0.7": lambda y: y % 0.7,
    "> 0": lambda y: y > 0,
    "where": lambda y: torch.where(y > 0, y, y * 3),
    "to integers": lambda y: (y * 4).to(torch.int32),
    "twice": lambda y: (y + 1) * y,
    "divided by itself": lambda y: y / (y.abs() + 1),
    "scaled and summed": lambda y: (y / 4).sum(-1) if y.dim() else y / 4,
}


def pair_cases(part: int = 0, parts: int = 1) -> Iterator[Case]:
    """One of several equal parts of the pairs."""
    number = 0
    for shape in SHAPES:
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
        for before, producer in (*_reductions(len(shape)), *layers(shape)):
            for after, consumer in CONSUMERS.items():
                number += 1
                if number % parts == part:
                    name = f"{before}, then {after}, of {list(shape)}"
                    model = Function(partial(_composed, producer, consumer)).eval()
                    case = made_case(name, f"{before}, then {after}", "float32", model, [x], special=False)
                    if case is not None:
                        yield case


def _composed(first: Step, second: Step, x: Tensor) -> Tensor:
    return second(first(x))
