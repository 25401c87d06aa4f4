"""Small models of ordinary layers, on which the overheads of running many different operators are measured.

In a loop of one operator, its code stays in the instruction cache, and there is no Python around it; in a model neither
is so. Its tensors are tiny: nearly all of the time is overhead.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH = 64, 4, 4, 8


class Norm(nn.Module):
    """Root mean square normalisation, operator by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Attention with rotated queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        shape = (*x.shape[:-1], HEADS, WIDTH // HEADS)
        query, key, value = (each(x).view(shape).transpose(1, 2) for each in (self.query, self.key, self.value))
        query, key = (_rotated(each, angles.cos(), angles.sin()) for each in (query, key))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found: Tensor = self.output(mixed.transpose(1, 2).reshape(x.shape))
        return found


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Layer(nn.Module):
    """Attention and a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([Norm(), Norm()])
        self.attention = Attention()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), angles)
        normed = self.norms[1](x)
        result: Tensor = x + self.down(self.activation(self.gate(normed)) * self.up(normed))
        return result


class TokenModel(nn.Module):
    """A few layers over embedded tokens: many operators for each module."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * torch.ones(
            WIDTH // HEADS, device=tokens.device, dtype=x.dtype
        )
        for layer in self.layers:
            x = layer(x, angles)
        logits: Tensor = torch.softmax(self.head(functional.gelu(self.norm(x))), -1)
        return logits


class ImageModel(nn.Module):
    """The usual blocks of image models: about one operator for each module."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)) for _ in range(2 * LAYERS)
        ]
        self.blocks = nn.ModuleList(nn.Sequential(*block) for block in blocks)

    def forward(self, image: Tensor) -> Tensor:
        for block in self.blocks:
            image = image + block(image)
        return image


def reference_models() -> list[tuple[nn.Module, Tensor]]:
    """Return the models, each with an input."""
    return [(TokenModel().eval(), torch.arange(LENGTH)[None] % 16), (ImageModel().eval(), torch.ones(1, 8, 8, LENGTH))]
