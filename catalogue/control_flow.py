"""torch.cond: the sign of the input's sum, known only at run time, picks the branch."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("control", inputs=lambda: (torch.randn(2, 8),))
class ControlFlow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(8, 8)
        self.negative = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        def warm(x: Tensor) -> Tensor:
            return torch.relu(self.positive(x))

        def cold(x: Tensor) -> Tensor:
            return torch.tanh(self.negative(x)) - 1

        return torch.cond(x.sum() > 0, warm, cold, (x,)) * 2
