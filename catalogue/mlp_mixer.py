"""Patches mixed along tokens and along channels by MLPs, with transposes between."""

import torch
from torch import Tensor, nn

from catalogue import entry


def mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = mlp(tokens, 2 * tokens)
        self.norm2 = nn.LayerNorm(width)
        self.channels = mlp(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


@entry("mlp", inputs=lambda: (torch.randn(1, 3, 16, 16),))
class MLPMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.blocks = nn.Sequential(*(MixerBlock(16, 32) for _ in range(2)))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))
