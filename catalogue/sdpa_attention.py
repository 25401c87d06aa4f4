"""Self-attention through scaled_dot_product_attention, causal, with a scale of its own."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("attention", inputs=lambda: (torch.randn(2, 12, 32),))
class SDPAAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96, bias=False)
        self.out = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))
