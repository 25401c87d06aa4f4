"""A linear layer in int8 with int32 sums, quantised on the way in and scaled on the way out."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("misc", inputs=lambda: (torch.randn(3, 16),))
class IntegerLinear(nn.Module):
    weight: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (8, 16), dtype=torch.int8))
        self.register_buffer("scale", torch.full((8,), 0.01))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        step = x.abs().amax(dim=-1, keepdim=True) / 127
        quantised = torch.clamp(torch.round(x / step), -128, 127).to(torch.int8)
        sums = torch.matmul(quantised.to(torch.int32), self.weight.to(torch.int32).t())
        halves = torch.div(sums, 2, rounding_mode="floor") + sums % 3
        return sums.to(x.dtype) * step * self.scale, halves
