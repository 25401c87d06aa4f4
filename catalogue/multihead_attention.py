"""nn.MultiheadAttention with a key padding mask, returning output and head-averaged weights."""

import torch
from torch import Tensor, nn

from catalogue import entry


def padded_batch() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([8, 5])
    return torch.randn(2, 8, 32), torch.arange(8) >= lengths[:, None]


@entry("attention", inputs=padded_batch)
class MultiheadAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm(x)
        mixed, weights = self.attention(y, y, y, key_padding_mask=padding)
        return x + mixed, weights
