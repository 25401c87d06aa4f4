"""Models in a module of their own: a capture searches the module of a class for tensors, which counts as calls."""

from __future__ import annotations

import torch
from torch import nn


class StoresTensor(nn.Module):
    """Stores a result in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.linear(x)
        return self.last.relu()


class Branches(nn.Module):
    """Branches on data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if x.sum() > 0 else -x
