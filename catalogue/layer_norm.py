"""Layer norms over one and two dimensions, with weight and bias, weight only, bias only and neither."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("mlp", inputs=lambda: (torch.randn(2, 5, 8),))
class LayerNorms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.LayerNorm(8)
        self.layer = nn.Linear(8, 8)
        self.weight_only = nn.LayerNorm((5, 8), bias=False)
        self.neither = nn.LayerNorm(8, elementwise_affine=False, eps=1e-3)
        self.shift = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.weight_only(torch.relu(self.layer(self.both(x))))
        x = nn.functional.layer_norm(x + 1, (8,), None, self.shift)
        return self.neither(x)
