"""Helpers for tests of localisation: a small model, and the node where a broken graph differs."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.proof import verdict
from torch_ir import IR, Divergence, VerificationReport

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def localised(ir: IR, model: nn.Module, *inputs: Any, **options: Any) -> tuple[Divergence, VerificationReport]:
    """Where a broken graph differs from its model."""
    report = verdict(ir, model, *inputs, localise=True, **options)
    assert not report.is_valid
    assert report.divergence is not None, report
    return report.divergence, report


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.one(x))  # tanh
        return self.two(x).relu() + self.one(x)  # sum


TWICE = Twice().eval()
