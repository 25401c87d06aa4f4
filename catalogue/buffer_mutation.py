"""Forward counts its calls and keeps a running mean in buffers; the output depends on both."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("state", inputs=lambda: (torch.randn(4, 8),))
class RunningMean(nn.Module):
    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.layer(x - self.mean) / self.calls
