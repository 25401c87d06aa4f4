"""Buffers that forward assigns: written if they keep shape and dtype, otherwise unchanged or refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import module
from torch_ir import ConversionError, IRExecutor, extract_ir

X = torch.arange(12.0).reshape(3, 4)
both_places = pytest.mark.parametrize("is_inside", [False, True])
both_roads = pytest.mark.parametrize("capture", ["auto", "record"])


def growing(self: Any, x: Tensor) -> Tensor:
    self.state = torch.cat([self.state, x])
    return self.state.sum(0)


def counting_in_halves(self: Any, x: Tensor) -> Tensor:
    self.state = self.state.long() + 0.5
    return x + self.state


def last_input(self: Any, x: Tensor) -> Tensor:
    made = x + self.state.sum(0)
    self.state = x * 1
    return made


def made_to_fit(self: Any, x: Tensor) -> Tensor:
    if self.state.shape[0] != x.shape[0]:
        self.state = torch.arange(4.0).expand(x.shape[0], 4) + 0
    return x + self.state


def cast_once(self: Any, x: Tensor) -> Tensor:
    self.state = self.state.double()
    return x + self.state.float()


def averaging(self: Any, x: Tensor) -> Tensor:
    self.state = self.state * 0.5 + x[:1]
    return x + self.state


def model(forward: Any, is_inside: bool, dtype: torch.dtype = torch.float32) -> nn.Module:
    inner = module(forward, buffers={"state": torch.ones(1, 4, dtype=dtype)})
    return module(lambda self, x: self.inner(x) * 2, inner=inner) if is_inside else inner


@both_roads
@both_places
@pytest.mark.parametrize("forward", [growing, counting_in_halves, last_input])
def test_state_that_changes_its_form_is_refused(forward: Any, is_inside: bool, capture: str) -> None:
    """The graph has one shape and dtype per buffer; the next call would read another."""
    dtype = torch.int64 if forward is counting_in_halves else torch.float32
    name = "inner.state" if is_inside else "state"
    told = f"forward reads the buffer '{name}' and assigns a tensor of another shape or dtype to it, .*; keep its shape"
    with pytest.raises(ConversionError, match=told):
        extract_ir(model(forward, is_inside, dtype), (X,), strict=False, capture=capture)


@both_roads
@both_places
@pytest.mark.parametrize("forward", [averaging, made_to_fit, cast_once])
def test_call_after_call_the_graph_gives_what_the_model_gives(forward: Any, is_inside: bool, capture: str) -> None:
    """State that keeps shape and dtype is written; state that forward resizes or casts is the same in every call."""
    given = model(forward, is_inside)
    executor = IRExecutor(extract_ir(given, (X,), strict=False, capture=capture), given.state_dict())
    for _ in range(3):
        torch.testing.assert_close(executor(X), given(X))
