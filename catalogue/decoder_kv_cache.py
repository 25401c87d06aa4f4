"""One decoding step: the past keys and values go in and out as a nested tuple."""

import torch
from torch import Tensor, nn

from catalogue import entry

Past = tuple[Tensor, Tensor]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, past: Past) -> tuple[Tensor, Past]:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


def step() -> tuple[Tensor, tuple[Past, ...]]:
    past = tuple((torch.randn(1, 4, 7, 8), torch.randn(1, 4, 7, 8)) for _ in range(2))
    return torch.randint(0, 100, (1, 1)), past


@entry("decoder", inputs=step)
class DecoderWithCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(100, 32)
        self.pos = nn.Embedding(16, 32)
        self.layers = nn.ModuleList(Layer(32, 4) for _ in range(2))
        self.head = nn.Linear(32, 100, bias=False)

    def forward(self, ids: Tensor, past: tuple[Past, ...]) -> tuple[Tensor, tuple[Past, ...]]:
        start = past[0][0].size(2)
        x = self.tok(ids) + self.pos(torch.arange(start, start + ids.size(1), device=ids.device))
        present = []
        for layer, layer_past in zip(self.layers, past, strict=True):
            x, layer_present = layer(x, layer_past)
            present.append(layer_present)
        return self.head(x), tuple(present)
