"""Blocks that write: to copies, views and inputs, to buffers; and parameters without a layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.random_models.block import Body, Draw, Takes, block, floats

REAL = Takes("real", 1)


@block(REAL)
def written_clone(draw: Draw, x: Tensor) -> Body:
    write = draw.choice(_WRITES)

    def forward(x: Tensor) -> Tensor:
        made = x.clone()
        write(made)
        return made

    return forward


@block(REAL)
def written_view(draw: Draw, x: Tensor) -> Body:
    """A view of a copy is written to; both go on."""
    view, write = draw.choice(_VIEWS), draw.choice(_WRITES)

    def forward(x: Tensor) -> Any:
        made = x.clone()
        part = view(made)
        before = made + 0
        write(part)
        return before, made, part

    return forward


@block(REAL)
def written_in_place(draw: Draw, x: Tensor) -> Body:
    """Write in place to any tensor: an input, a view, a result with other consumers."""
    view, write = draw.choice(_VIEWS), draw.choice(_WRITES)

    def forward(x: Tensor) -> Any:
        write(view(x))
        return x + 1

    return forward


_VIEWS = (
    lambda x: x, lambda x: x[0], lambda x: x[..., 0], lambda x: x[..., ::2], lambda x: x.transpose(0, -1),
    lambda x: x[1:],
    lambda x: x.view(-1), lambda x: x.unsqueeze(0)[0], lambda x: x.chunk(2, -1)[0], lambda x: x.detach(),
    lambda x: x.unbind(0)[-1], lambda x: x.flatten()[:2], lambda x: x.diagonal(0, 0, -1),
)  # fmt: skip


def _assign_first(x: Tensor) -> None:
    x[..., 0] = 2


def _assign_mask(x: Tensor) -> None:
    x[x > 0] = 1


def _assign_list(x: Tensor) -> None:
    x[[0, -1]] = x[[-1, 0]]


def _add_slice(x: Tensor) -> None:
    x[1:] += x[:-1] * 2


_WRITES = (
    lambda x: x.add_(1), lambda x: x.mul_(2), lambda x: x.zero_(), lambda x: x.fill_(3),
    lambda x: x.copy_(x.flip(0) * 2),
    lambda x: x.clamp_(0, 1), lambda x: x.masked_fill_(x > 0, 5), lambda x: x.index_fill_(0, torch.tensor([0]), 4),
    lambda x: x.sub_(x * 3), lambda x: F.relu(x, inplace=True), lambda x: x.squeeze_().add_(1), lambda x: x.abs_(),
    lambda x: x.t_().mul_(3), lambda x: x.index_put_((torch.tensor([0]),), x[-1]), lambda x: x.cumsum_(0),
    _assign_first, _assign_mask, _assign_list, _add_slice,
)  # fmt: skip


# -- buffers and parameters -------------------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self, assign: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.assign = assign

    def forward(self, x: Tensor) -> Any:
        if self.assign:
            self.count = self.count + x.dim()
        else:
            self.count += 1
        return x + self.count, self.count * 2


@block(REAL)
def counter(draw: Draw, x: Tensor) -> Body:
    return Counter(draw.chance(0.4))


class RunningMean(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, dtype=dtype))
        self.register_buffer("table", torch.arange(float(width), dtype=dtype).repeat(3, 1))

    def forward(self, x: Tensor) -> Any:
        old = self.mean.clone()
        self.mean.lerp_(x.reshape(-1, x.shape[-1]).mean(0), 0.1)
        self.table[1:].mul_(0.5)
        self.table[0] = self.mean
        return x - self.mean, old, self.table[1]


@block(Takes("wide", 1))
def running_mean(draw: Draw, x: Tensor) -> Body:
    return RunningMean(x.shape[-1], x.dtype)


class KeyCache(nn.Module):
    """Rows are written at a place that is counted."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, width, dtype=dtype))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.index_copy_(0, self.place % 4, x.reshape(-1, x.shape[-1])[:1])
        self.place.add_(1)
        return self.cache.sum(0) + x


@block(Takes("wide", 1))
def key_cache(draw: Draw, x: Tensor) -> Body:
    return KeyCache(x.shape[-1], x.dtype)


class Raw(nn.Module):
    """Parameters without a layer, one of them frozen, a non-persistent buffer, and a plain attribute."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width, dtype=torch.float32).to(dtype))
        self.shift = nn.Parameter(torch.zeros(1, width, dtype=dtype), requires_grad=False)
        self.register_buffer("table", torch.arange(1.0, width + 1).to(dtype), persistent=False)
        self.plain = torch.full((width,), 0.25, dtype=dtype)
        self.factor = 1.5

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale + self.shift) / self.table + self.plain * self.factor


@block(floats(1))
def raw_parameters(draw: Draw, x: Tensor) -> Body:
    return Raw(x.shape[-1], x.dtype)


class Tied(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(width, width, bias=False, dtype=dtype)
        self.down = nn.Linear(width, width, dtype=dtype)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.down(self.up(x)), self.up.weight.t())


@block(floats(1))
def tied(draw: Draw, x: Tensor) -> Body:
    return Tied(x.shape[-1], x.dtype)
