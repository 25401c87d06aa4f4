"""A temporal network: dilated causal 1-d convolutions over a signal."""

import torch
from torch import Tensor, nn

from catalogue import entry


class CausalConv(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.left = 2 * dilation
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.conv(nn.functional.pad(x, (self.left, 0))))


@entry("cnn", inputs=lambda: (torch.randn(2, 1, 40),))
class TemporalNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 5, padding="same")
        self.layers = nn.Sequential(*(CausalConv(8, 2**i) for i in range(3)))
        self.pool = nn.AvgPool1d(4)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, signal: Tensor) -> Tensor:
        return self.norm(self.pool(self.layers(self.stem(signal))))
