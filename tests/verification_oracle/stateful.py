"""Small models whose results depend on state, identity, memory or extreme values; each is called with `X` and `Y`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODELS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {}
TRAINING = frozenset(("batch_norm_in_training", "dropout_in_training"))
X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))


class Stateful(nn.Module):
    """Parameters, buffers, views and Python state for a forward to use."""

    def __init__(self, forward: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(4.0) + 1)
        self.frozen = nn.Parameter(torch.arange(4.0) - 2, requires_grad=False)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.register_buffer("all", torch.arange(4.0))
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.tail = self.all[2:]
        self.calls, self.log, self.table, self.prev = 0, [], {"n": 0}, torch.zeros(3, 4)
        self._forward = forward

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self._forward(self, x, y)


def stateful(forward: Callable[[Any, Tensor, Tensor], Any]) -> Callable[[Any, Tensor, Tensor], Any]:
    MODELS[forward.__name__] = forward
    return forward


def build(name: str) -> nn.Module:
    return Stateful(MODELS[name]).train(name in TRAINING)


# -- parameters and what they are ------------------------------------------------------------------------------------


@stateful
def asks_requires_grad(m: Any, x: Tensor, y: Tensor) -> Any:
    return x + m.w if m.w.requires_grad else x - m.w


@stateful
def asks_requires_grad_of_a_frozen_one(m: Any, x: Tensor, y: Tensor) -> Any:
    return x + m.frozen if m.frozen.requires_grad else x - m.frozen


@stateful
def asks_the_class(m: Any, x: Tensor, y: Tensor) -> Any:
    return x * m.w if type(m.w) is nn.Parameter else x


@stateful
def asks_isinstance(m: Any, x: Tensor, y: Tensor) -> Any:
    return x * m.w if isinstance(m.w, nn.Parameter) else x


@stateful
def counts_trainable(m: Any, x: Tensor, y: Tensor) -> Any:
    return x * sum(p.numel() for p in m.parameters() if p.requires_grad)


@stateful
def gets_parameters_by_name(m: Any, x: Tensor, y: Tensor) -> Any:
    return x @ m.get_parameter("layers.0.weight") + m.get_buffer("all")


@stateful
def moves_data(m: Any, x: Tensor, y: Tensor) -> Any:
    m.w.data = m.w.data + 1
    return x + m.w


@stateful
def writes_to_data(m: Any, x: Tensor, y: Tensor) -> Any:
    m.w.data.add_(1)
    return x + m.w


@stateful
def replaces_a_parameter(m: Any, x: Tensor, y: Tensor) -> Any:
    m.w = nn.Parameter(m.w + 1)
    return x + m.w


@stateful
def swaps_layers(m: Any, x: Tensor, y: Tensor) -> Any:
    m.layers[0], m.layers[1] = m.layers[1], m.layers[0]
    return m.layers[0](x)


# -- buffers, views and Python state ---------------------------------------------------------------------------------


@stateful
def a_view_of_a_buffer(m: Any, x: Tensor, y: Tensor) -> Any:
    m.all += 1
    return x.sum() + m.tail


@stateful
def writes_through_a_view(m: Any, x: Tensor, y: Tensor) -> Any:
    m.tail.mul_(2)
    return x + m.all


@stateful
def accumulates(m: Any, x: Tensor, y: Tensor) -> Any:
    m.total += x.sum()
    return x + m.total


@stateful
def accumulates_where_no_state_dict_looks(m: Any, x: Tensor, y: Tensor) -> Any:
    m.hidden.mul_(2)
    return x * m.hidden


@stateful
def returns_its_buffer(m: Any, x: Tensor, y: Tensor) -> Any:
    m.total.add_(1)
    return m.total


@stateful
def assigns_a_buffer(m: Any, x: Tensor, y: Tensor) -> Any:
    m.all = m.all * 2
    return x + m.all


@stateful
def swaps_buffers(m: Any, x: Tensor, y: Tensor) -> Any:
    m.all, m.hidden = m.hidden, m.all + 1
    return x + m.all


@stateful
def counts_calls(m: Any, x: Tensor, y: Tensor) -> Any:
    m.calls += 1
    return x * m.calls


@stateful
def counts_calls_in_vain(m: Any, x: Tensor, y: Tensor) -> Any:
    m.calls += 1
    m.log.append(m.calls)
    return x * 2


@stateful
def appends(m: Any, x: Tensor, y: Tensor) -> Any:
    m.log.append(x)
    return torch.stack(m.log).sum(0)


@stateful
def counts_in_a_dict(m: Any, x: Tensor, y: Tensor) -> Any:
    m.table["n"] += 1
    return x + m.table["n"]


@stateful
def keeps_its_input(m: Any, x: Tensor, y: Tensor) -> Any:
    result = x + m.prev
    m.prev = x
    return result


@stateful
def first_call_only(m: Any, x: Tensor, y: Tensor) -> Any:
    if not hasattr(m, "started"):
        m.started = True
        return x + 1
    return x - 1


# -- results and inputs of every kind --------------------------------------------------------------------------------


@stateful
def writes_to_an_input(m: Any, x: Tensor, y: Tensor) -> Any:
    y.mul_(2)
    return x + y


@stateful
def returns_a_view_of_an_input(m: Any, x: Tensor, y: Tensor) -> Any:
    return x.t(), x, y[1:]


@stateful
def returns_numbers(m: Any, x: Tensor, y: Tensor) -> Any:
    return 3, 2.5, x.shape[0]


@stateful
def returns_everything(m: Any, x: Tensor, y: Tensor) -> Any:
    return {"none": None, "text": "a", "flag": True, "nested": [(x, {"deep": y * 2})]}


@stateful
def not_a_number(m: Any, x: Tensor, y: Tensor) -> Any:
    return torch.where(x > 0, x, float("nan")) / 0, x.log()


@stateful
def infinite(m: Any, x: Tensor, y: Tensor) -> Any:
    return torch.where(x > 0, float("inf"), -float("inf")) + y


@stateful
def complex_numbers(m: Any, x: Tensor, y: Tensor) -> Any:
    return torch.complex(x, y) * torch.complex(y, x).conj()


@stateful
def booleans(m: Any, x: Tensor, y: Tensor) -> Any:
    return (x > y) ^ (x > 0)


@stateful
def large_integers(m: Any, x: Tensor, y: Tensor) -> Any:
    return (x > 0).long() + (2**53 + 1), (y > 0).long() * (2**62 + 3)


@stateful
def empty_results(m: Any, x: Tensor, y: Tensor) -> Any:
    return x[:0], y[:, :0].sum(1)


@stateful
def tiny_results(m: Any, x: Tensor, y: Tensor) -> Any:
    return x * 1e-12 + y * 1e-13


@stateful
def batch_norm_in_training(m: Any, x: Tensor, y: Tensor) -> Any:
    return m.norm(x)


@stateful
def dropout_in_training(m: Any, x: Tensor, y: Tensor) -> Any:
    return m.drop(x)


@stateful
def random_numbers(m: Any, x: Tensor, y: Tensor) -> Any:
    return x + torch.randn(3, 4) + torch.bernoulli(y.sigmoid())


@stateful
def attends(m: Any, x: Tensor, y: Tensor) -> Any:
    return F.scaled_dot_product_attention(x[None], y[None], m.layers[0](x)[None])
