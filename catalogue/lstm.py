"""A tagger: embedding, two bidirectional LSTM layers, one class per step."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("rnn", inputs=lambda: (torch.randint(0, 50, (2, 7)),))
class LSTMTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        steps, state = self.lstm(self.embedding(ids))
        return self.head(steps), state
