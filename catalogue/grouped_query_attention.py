"""Grouped-query attention with rotary embedding: four query heads share two key/value heads."""

import torch
from torch import Tensor, nn

from catalogue import entry


class Rotary(nn.Module):
    """Turns pairs of channels by an angle that grows with the position."""

    inv_freq: Tensor

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        inv_freq = base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(-2), device=x.device, dtype=torch.float32)
        angles = torch.outer(positions, self.inv_freq)
        angles = torch.cat([angles, angles], dim=-1)
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


@entry("attention", inputs=lambda: (torch.randn(2, 10, 32),))
class GroupedQueryAttention(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.head_width = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.head_width, bias=False)
        self.v_proj = nn.Linear(width, groups * self.head_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.rotary = Rotary(self.head_width)
        self.repeats = heads // groups

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q = self.rotary(self.split(self.q_proj(x)))
        k = self.rotary(self.split(self.k_proj(x))).repeat_interleave(self.repeats, dim=1)
        v = self.split(self.v_proj(x)).repeat_interleave(self.repeats, dim=1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))
