"""Parallel branches with different kernels, joined along the channels."""

import torch
from torch import Tensor, nn

from catalogue import entry

Size = int | tuple[int, int]


class ConvNorm(nn.Sequential):
    def __init__(self, channels: int, out: int, kernel: Size, padding: Size = 0) -> None:
        conv = nn.Conv2d(channels, out, kernel, padding=padding, bias=False)
        super().__init__(conv, nn.BatchNorm2d(out, eps=0.001), nn.ReLU(inplace=True))


class InceptionBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = ConvNorm(channels, 8, 1)
        self.three = nn.Sequential(ConvNorm(channels, 4, 1), ConvNorm(4, 8, 3, 1))
        self.split = nn.Sequential(
            ConvNorm(channels, 4, 1), ConvNorm(4, 4, (1, 5), (0, 2)), ConvNorm(4, 8, (5, 1), (2, 0))
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvNorm(channels, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.split(x), self.pool(x)], 1)


@entry("cnn", inputs=lambda: (torch.randn(1, 3, 24, 24),))
class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 16, 3, 1)
        self.blocks = nn.Sequential(InceptionBlock(16), nn.AvgPool2d(2, ceil_mode=True), InceptionBlock(32))
        self.classifier = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.blocks(self.stem(x)).amax((2, 3)))
