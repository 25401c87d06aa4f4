"""Chooses element by element: masks, comparisons, infinities and replaced NaNs."""

import torch
from torch import Tensor, nn

from catalogue import entry


def holes() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 8)
    x[1, 2] = float("nan")
    x[2, 5] = float("inf")
    return x, torch.rand(4, 8) > 0.3


@entry("misc", inputs=holes)
class Where(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.limit = nn.Parameter(torch.full((8,), 1.5))

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        clean = torch.where(torch.isnan(x), 0.0, x).nan_to_num(posinf=3.0)
        y = torch.clamp(self.layer(clean), max=self.limit)
        scores = torch.where(keep & (y > -2), y, float("-inf"))
        below = torch.minimum(y, x)
        return scores, below, torch.logical_or(y.isfinite(), keep).all(-1)
