"""Top-k routed experts: every expert runs, the router's gates decide what counts."""

import torch
from torch import Tensor, nn

from catalogue import entry


def expert(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))


@entry("moe", inputs=lambda: (torch.randn(2, 6, 16),))
class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(expert(16) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.router(x)
        best, chosen = torch.topk(logits, k=2, dim=-1)
        gates = torch.zeros_like(logits).scatter(-1, chosen, torch.softmax(best, dim=-1))
        outputs = torch.stack([e(x) for e in self.experts], dim=-1)
        return x + (outputs * gates.unsqueeze(-2)).sum(-1), chosen
