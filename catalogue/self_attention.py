"""Multi-head self-attention written out with matmul and softmax."""

import math

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("attention", inputs=lambda: (torch.randn(2, 10, 32),))
class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.query = nn.Linear(32, 32)
        self.key = nn.Linear(32, 32)
        self.value = nn.Linear(32, 32)
        self.out = nn.Linear(32, 32)

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        mixed = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))
