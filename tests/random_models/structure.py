"""Blocks of structure: containers, shared modules, regions, constants created in forward, control flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tests.random_models.block import ALIKE, Body, Draw, Takes, block, floats


class Layer(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype, index: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=dtype)
        self.inner = nn.Sequential(
            nn.Linear(width, 6, dtype=dtype), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, width, dtype=dtype)
        )
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Tower(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, dtype, index) for index in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@block(floats(1))
def tower(draw: Draw, x: Tensor) -> Body:
    return Tower(x.shape[-1], x.dtype, draw.randint(2, 4))


class Named(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({"left": nn.Linear(width, 4, dtype=dtype)})
        self.branches["right"] = nn.Sequential(nn.Linear(width, 4, dtype=dtype), nn.Identity(), nn.Tanh())
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4, dtype=dtype)) for _ in range(2)])
        self.table = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(4, dtype=dtype))})

    def forward(self, x: Tensor) -> Tensor:
        made = [branch(x) * scale for branch, scale in zip(self.branches.values(), self.scales, strict=True)]
        return torch.cat(made, -1) + self.table["shift"].repeat(2)


@block(floats(1))
def containers(draw: Draw, x: Tensor) -> Body:
    return Named(x.shape[-1], x.dtype)


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x)) + x


@block(floats(1))
def called_twice(draw: Draw, x: Tensor) -> Body:
    return Twice(Layer(x.shape[-1], x.dtype, 0))


class TwoNames(nn.Module):
    """One module under two names."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.one = nn.Linear(width, width, dtype=dtype)
        self.other = self.one

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x).relu())


@block(floats(1))
def two_names(draw: Draw, x: Tensor) -> Body:
    return TwoNames(x.shape[-1], x.dtype)


class Other(nn.Module):
    """A module called with other parameters than its own."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        halved = {name: value * 0.5 for name, value in self.inner.named_parameters()}
        return functional_call(self.inner, halved, (x,))


@block(floats(1))
def other_parameters(draw: Draw, x: Tensor) -> Body:
    return Other(x.shape[-1], x.dtype)


class Recomputed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


@block(floats(1))
def checkpointed(draw: Draw, x: Tensor) -> Body:
    return Recomputed(Layer(x.shape[-1], x.dtype, 0))


class Narrow(nn.Module):
    """A region of autocast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = self.inner(x) @ torch.ones(x.shape[-1], 2)
        return made.float() + 1


@block(Takes("wide", 1))
def autocast(draw: Draw, x: Tensor) -> Body:
    return Narrow(x.shape[-1])


@block(floats(1))
def dropout(draw: Draw, x: Tensor) -> Body:
    return draw.choice((nn.Dropout(0.4), nn.AlphaDropout(0.2), nn.Dropout(0.0)))


@block(floats(1))
def residual(draw: Draw, x: Tensor) -> Body:
    return Twice(draw.choice((nn.ReLU(), nn.Tanh(), nn.Linear(x.shape[-1], x.shape[-1], dtype=x.dtype))))


@block(Takes("real", 1))
def constants(draw: Draw, x: Tensor) -> Body:
    captured = torch.tensor([1, 2, 3])
    return draw.choice((
        lambda x: x + torch.arange(x.shape[-1]), lambda x: x * torch.full((1,), 2, dtype=x.dtype),
        lambda x: x + captured.sum(),
        lambda x: x + torch.eye(x.shape[-1], dtype=x.dtype).sum(0), lambda x: x + torch.linspace(0, 1, x.shape[-1]),
        lambda x: x.new_ones(x.shape) + torch.tensor(3.5), lambda x: x + torch.tensor([float("inf"), 1.0]).min(),
        lambda x: (torch.zeros(x.shape[0], 2), torch.ones_like(x, dtype=torch.bool)),
        lambda x: x.shape[0] * x + x.dim(),
        lambda x: torch.logspace(0, 1, 3).sum() + x, lambda x: torch.tensor(2.0, dtype=torch.float64) * x,
    ))  # fmt: skip


# -- control flow -----------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.warm = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.warm(x).relu(), lambda x: -x.clone(), (x,))


@block(Takes("wide", 1))
def cond(draw: Draw, x: Tensor) -> Body:
    return Branching(x.shape[-1], x.dtype)


@block(Takes("wide", 1))
def while_loop(draw: Draw, x: Tensor) -> Body:
    from torch._higher_order_ops.while_loop import while_loop as loop

    def forward(x: Tensor) -> Any:
        def more(i: Tensor, y: Tensor) -> Tensor:
            return i < 3

        def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, y * 0.5 + 1

        return loop(more, body, (torch.tensor(0), x.clone()))[1]

    return forward


@block(Takes("wide", 1), ALIKE)
def mapped_over(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return lambda x, y: torch.vmap(lambda a, b: (a * b).sum() + a)(x, y)


class Python(nn.Module):
    """Ordinary Python around tensors: loops, comprehensions, settings."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.settings = {"count": count, "sign": -1}

    def forward(self, x: Tensor) -> Any:
        found = [x * (i + 1) for i in range(self.settings["count"])]
        again = found[0].clone()
        return sum(found) * self.settings["sign"] + again if x.dim() > 1 else found[-1]


@block(Takes("real", 1))
def python(draw: Draw, x: Tensor) -> Body:
    return Python(draw.randint(1, 3))
