"""One Linear used twice in a chain, and once more through its bare weight."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("shared", inputs=lambda: (torch.randn(2, 16),))
class SharedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.same_layer = self.layer

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer(x))
        x = torch.relu(self.same_layer(x))
        return nn.functional.linear(x, self.layer.weight.t())
