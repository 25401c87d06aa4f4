"""Queries of one sequence look at keys and values of another, through einsum."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("attention", inputs=lambda: (torch.randn(2, 6, 32), torch.randn(2, 9, 24)))
class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, 32, bias=False)
        self.key_value = nn.Linear(24, 64, bias=False)
        self.out = nn.Linear(32, 32)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.query(x).unflatten(-1, (4, 8))
        k, v = self.key_value(context).unflatten(-1, (2, 4, 8)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return x + self.out(mixed.flatten(2))
