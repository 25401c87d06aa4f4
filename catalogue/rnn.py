"""A plain recurrent network with a start state, classified by its last step."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("rnn", inputs=lambda: (torch.randn(2, 7, 8), torch.randn(1, 2, 16)))
class RNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(8, 16, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        steps, state = self.rnn(x, state)
        return self.head(steps[:, -1]), state
