"""Channels re-weighted by a gate computed from their own means."""

import torch
from torch import Tensor, nn

from catalogue import entry


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = nn.functional.silu(self.reduce(self.pool(x)), inplace=True)
        return x * nn.functional.hardsigmoid(self.expand(gate))


@entry("cnn", inputs=lambda: (torch.randn(1, 3, 32, 32),))
class SqueezeExciteNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.gate = SqueezeExcite(16, 4)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gate(self.stem(x)).mean((2, 3)))
