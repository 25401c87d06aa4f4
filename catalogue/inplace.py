"""Writes into tensors: slices, masks and additions in place, seen through views."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("misc", inputs=lambda: (torch.randn(4, 8),))
class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y[:, ::2] = x[:, 1::2] * 2
        y.masked_fill_(y < -0.5, -0.5)
        last = y[-1]
        last.add_(1)
        y.view(-1)[3:6].zero_()
        y[:, 0] += last.sum()
        padded = x.new_zeros(6, 8)
        padded[1:5] = y
        padded.t()[2].copy_(torch.arange(6, device=x.device))
        return padded
