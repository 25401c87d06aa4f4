"""A recommender: one embedding per categorical column, a factorisation term and a deep tower."""

import torch
from torch import Tensor, nn

from catalogue import entry

SIZES = (20, 10, 5)


@entry("embedding", inputs=lambda: (torch.stack([torch.randint(0, n, (4,)) for n in SIZES], 1), torch.randn(4, 6)))
class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 8) for size in SIZES)
        self.dense = nn.Linear(6, 8)
        self.tower = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, columns: Tensor, numbers: Tensor) -> Tensor:
        fields = [table(column) for table, column in zip(self.tables, columns.unbind(1), strict=True)]
        stacked = torch.stack([*fields, self.dense(numbers)], dim=1)
        pairs = 0.5 * (stacked.sum(1).square() - stacked.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(pairs + self.tower(stacked.flatten(1))).squeeze(-1)
