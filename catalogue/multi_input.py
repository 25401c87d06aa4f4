"""An image, a row of numbers and a class id, fused by a bilinear layer."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("multi_io", inputs=lambda: (torch.randn(2, 3, 16, 16), torch.randn(2, 5), torch.randint(0, 7, (2,))))
class MultiInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.table = nn.Linear(5, 16)
        self.kind = nn.Embedding(7, 16)
        self.fuse = nn.Bilinear(32, 16, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, image: Tensor, row: Tensor, kind: Tensor) -> Tensor:
        fused = self.fuse(self.vision(image), self.table(row) + self.kind(kind))
        return self.head(torch.tanh(fused))
