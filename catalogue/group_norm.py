"""Group norm between convolutions, with and without an affine part."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("cnn", inputs=lambda: (torch.randn(2, 3, 12, 12),))
class GroupNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.norm1 = nn.GroupNorm(2, 8)
        self.conv2 = nn.Conv2d(8, 8, 3, dilation=2)
        self.norm2 = nn.GroupNorm(8, 8, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        return self.norm2(self.conv2(x))
