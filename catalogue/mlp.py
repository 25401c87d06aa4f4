"""Two fully connected layers with a ReLU between them."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("mlp", inputs=lambda: (torch.randn(1, 4),))
class SimpleMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))
