"""A GPT decoder whose language-model head is the token embedding."""

import torch
from torch import Tensor, nn

from catalogue import entry


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        return x + self.down(nn.functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


@entry("decoder", inputs=lambda: (torch.randint(0, 100, (2, 12)),))
class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(100, 32)
        self.pos = nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.ln_f = nn.LayerNorm(32)
        self.lm_head = nn.Linear(32, 100, bias=False)
        self.lm_head.weight = self.tok.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))
