"""A capture that may have changed Python state records a second run, and compares it with the first."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import module
from tests.test_frozen_state import X, told
from torch_ir import extract_ir
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.capture.state import frozen_state
from torch_ir.capture.state.side_effects import observed_changes


class KeepsCopy(nn.Module):
    """Keeps what a buffer held before the first call wrote to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(4))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = self.steps.clone()
        self.steps.add_(1)
        return x + self.kept


def test_a_copy_of_a_buffer_that_is_written_to_is_state() -> None:
    (sentence,) = told(KeepsCopy().eval(), "auto")
    assert "'kept'" in sentence


class KeepsResult(nn.Module):
    """Stores a result for the user, which no call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.layer(x)
        if self.training and random.random() < 0.1:
            return x
        return self.seen.relu()


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (KeepsResult, None),
        (KeepsResult, ({0: torch.export.Dim("n", min=2, max=8)},)),
        (lambda: nn.GRU(3, 3), None),
        (lambda: nn.LSTM(3, 3), None),
    ],
)
def test_the_second_run_is_recorded_like_the_first(
    made: Callable[[], nn.Module], sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fake tensors, which take many times as long."""
    monkeypatch.setattr(frozen_state, "_fake_runs", lambda *_: pytest.fail("ran on fake tensors"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract_ir(made().eval(), (torch.ones(2, 3),), strict=False, dynamic_shapes=sizes)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_fails_is_not_repeated(error: type[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    def failing(self: Any, x: Tensor) -> Tensor:
        print("runs")
        self.held = x
        raise error

    with pytest.raises((KeyboardInterrupt, NotCoveredError)), observed_changes():
        record_fast(module(failing, held=None), (X,), {})
    assert capsys.readouterr().out == "runs\n"
