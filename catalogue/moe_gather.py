"""Experts as one stacked weight: each token gathers the matrices of the experts that it chose."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("moe", inputs=lambda: (torch.randn(6, 16),))
class GatheredExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, 16, 32) * 0.2)
        self.down = nn.Parameter(torch.randn(4, 32, 16) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        gates, chosen = torch.topk(torch.softmax(self.router(x), dim=-1), k=2, dim=-1)
        gates = gates / gates.sum(-1, keepdim=True)
        hidden = torch.relu(torch.einsum("ti,tkio->tko", x, self.up[chosen]))
        return torch.einsum("tko,tkoi,tk->ti", hidden, self.down[chosen], gates)
