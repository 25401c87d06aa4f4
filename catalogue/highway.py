"""Highway layers: a learned gate mixes the input and its transformation."""

import torch
from torch import Tensor, nn

from catalogue import entry


class HighwayLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.tanh(self.transform(x)) + (1 - gate) * x


@entry("residual", inputs=lambda: (torch.randn(4, 16),))
class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HighwayLayer(16) for _ in range(3))
        self.mix = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x + nn.functional.glu(self.mix(x), dim=-1)
