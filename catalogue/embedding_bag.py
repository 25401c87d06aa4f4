"""Bags of words of different sizes, averaged and classified."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("embedding", inputs=lambda: (torch.randint(0, 50, (12,)), torch.tensor([0, 4, 9])))
class BagClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(50, 16, mode="mean")
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return self.head(self.bags(words, offsets))
