"""Tiny models for `exactness_check`, each with details of torch.export that the fast recording reproduces.

Their `forward` counts as the user's code, so that source lines are compared as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FILE = "fast_capture_check.py"  # a file outside torch_ir
_Function = TypeVar("_Function", bound=Callable[..., Any])
CheckModel = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]  # with positional and keyword inputs


def check_models() -> Iterator[CheckModel]:
    """Yield the models with their inputs, all on meta."""
    x = torch.empty(2, 4, device="meta")
    yield _Names().eval(), ([x, (x,)], {"k y": x, "In": (x, x)}, x, x), {"add": x, "max": x}
    yield _Literals().eval(), (x,), {}
    yield _Writes().eval(), (x.clone(),), {}
    yield _Results().eval(), (x, 3), {}
    yield _Modules().eval(), (x,), {}
    yield _Layers().eval(), (torch.empty(1, 3, 8, 8, device="meta"), torch.ones(1, 5, dtype=torch.int64).to("meta")), {}
    yield _Dropped().train(), (x,), {}


def _users(function: _Function) -> _Function:
    """Make a function appear to be defined outside torch_ir."""
    function.__code__ = function.__code__.replace(co_filename=_FILE)
    return function


class _Names(nn.Module):
    """Nested inputs, colliding or reserved names, weights with two keys or unusual ones."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, device="meta")
        self.B = nn.Linear(4, 4, bias=False, device="meta")
        self.B.weight = self.a.weight
        self.register_buffer("Lost", torch.ones(4, device="meta"), persistent=False)
        self.register_parameter("w-1", nn.Parameter(torch.ones(4, device="meta")))
        self.register_parameter("w_1", nn.Parameter(torch.ones(4, device="meta")))

    @_users
    def forward(self, xs: Any, table: Any, xs_0: Tensor, p_a_weight: Tensor, *, add: Tensor, max: Tensor) -> Any:
        made = self.a(xs[0]) + xs[1][0] + table["k y"] + table["In"][1] + xs_0 + p_a_weight + add
        made = self.B(made) + getattr(self, "w-1") + self.w_1 + self.Lost + max.max(0)[0]
        return {"made": made, "rest": [table["In"][0], None, 3]}


class _Literals(nn.Module):
    """Literals that are read or not, tensors held as attributes, detached tensors, casts."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.tensor([1.0, 1.0, 1.0, 1.0], device="cpu")
        self.same = self.plain

    @_users
    def forward(self, x: Tensor) -> Any:
        torch.tensor([7.0])  # nothing reads it
        x.detach()
        made = x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.same + self.plain.detach()
        return made.to(torch.float64) + 1, made.to(x.dtype), made.half().float(), torch.arange(4) + torch.zeros(2, 1)


class _Writes(nn.Module):
    """Writes to a buffer, an input, a view and a new tensor."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4, device="meta"))

    @_users
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = x.clone()
        y[0] = 3
        y[:, 1] += 1
        x.mul_(2)
        return y.relu_().add_(self.count).add_(x)


class _Results(nn.Module):
    """Operators with several results, some of them unread; a number as an input."""

    @_users
    def forward(self, x: Tensor, count: int) -> Any:
        values, places = x.max(1)
        left, right = x.chunk(2, 1)
        top = torch.topk(x, 2)
        return values + places * count + left[:, 0] + right[:, 1] + x.unbind(1)[0], top, torch.std_mean(x)


@_users
def _helper(x: Tensor) -> Tensor:
    return x.sin()


class _Modules(nn.Module):
    """Modules that are called twice, have two paths, are created in forward, or have hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4, device="meta"), nn.ReLU())
        self.again = self.block
        self.block[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))

    @_users
    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        x = self.again(x)
        return _helper(nn.Tanh()(x) + self.block[0].forward(x))


class _Layers(nn.Module):
    """Convolution, batch norm, embedding, attention, recurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 4, 3, device="meta"), nn.BatchNorm2d(4, device="meta"), nn.ReLU(True))
        self.table = nn.Embedding(6, 8, device="meta")
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, device="meta")
        self.gru = nn.GRU(8, 3, device="meta")

    @_users
    def forward(self, image: Tensor, ids: Tensor) -> Any:
        hidden = self.layer(self.table(ids))
        attended = F.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
        return self.conv(image).mean((2, 3)), self.gru(attended)[0]


class _Dropped(nn.Module):
    """Random operators of training, and dropout that is off."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    @_users
    def forward(self, x: Tensor) -> Any:
        kept = F.dropout(x, training=False)  # what reads x afterwards reads this, or x
        return self.drop(x) + F.dropout(x) + kept + torch.rand(4)
