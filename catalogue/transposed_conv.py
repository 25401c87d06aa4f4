"""A generator that grows an image from noise with transposed convolutions."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("cnn", inputs=lambda: (torch.randn(2, 16),))
class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.Linear(16, 16 * 3 * 3)
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.LeakyReLU(0.1, inplace=True),
            nn.ConvTranspose2d(8, 3, 3, padding=2, dilation=2),
        )

    def forward(self, noise: Tensor) -> Tensor:
        return torch.tanh(self.layers(self.grow(noise).view(-1, 16, 3, 3)))
