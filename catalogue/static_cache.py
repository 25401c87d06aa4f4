"""Attention over a cache of fixed size held in buffers, into which each call writes its keys and values."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("state", inputs=lambda: (torch.randn(1, 2, 16), torch.tensor([3, 4])))
class StaticCache(nn.Module):
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(1, 2, 8, 8))
        self.register_buffer("values", torch.zeros(1, 2, 8, 8))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        self.keys.index_copy_(2, positions, k)
        self.values[:, :, positions] = v
        visible = torch.arange(8, device=x.device) <= positions[:, None]
        mixed = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=visible)
        return mixed.transpose(1, 2).flatten(2)
