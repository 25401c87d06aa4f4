"""A dict of a tensor, a tuple, None and a number, with one tensor given out twice."""

from typing import Any

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("multi_io", inputs=lambda: (torch.randn(3, 8),))
class MultiOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.classes = nn.Linear(16, 4)
        self.value = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = torch.relu(self.body(x))
        best, index = self.classes(hidden).max(dim=-1)
        return {
            "value": self.value(hidden),
            "best": (best, index),
            "attention": None,
            "count": x.shape[0],
            "states": [hidden, hidden, x],
        }
