"""A bfloat16 body between float32 ends, with casts and a float64 sum."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("misc", inputs=lambda: (torch.randn(4, 16),))
class MixedPrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.body = nn.Linear(32, 32, dtype=torch.bfloat16)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(torch.relu(self.first(x)).to(torch.bfloat16))
        return self.last(hidden.float()), hidden.sum(-1, dtype=torch.float64)
