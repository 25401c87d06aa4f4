"""A GRU over the sequence, then a GRU cell stepped by hand from its last state."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("rnn", inputs=lambda: (torch.randn(6, 2, 8),))
class GRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(8, 16)
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.encoder(x)
        hidden, step, predictions = state.squeeze(0), x[-1], []
        for _ in range(3):
            hidden = self.cell(step, hidden)
            step = self.head(hidden)
            predictions.append(step)
        return torch.stack(predictions)
