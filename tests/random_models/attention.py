"""Blocks of transformers: attention in its forms, masks, rotations, gates, whole layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.random_models.block import ALIKE, Body, Draw, Takes, block, floats

SEQUENCE = floats(3, 3, even=-1)


def _heads(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@block(SEQUENCE)
def self_attention(draw: Draw, x: Tensor) -> Body:
    causal = draw.chance(0.5)

    def forward(x: Tensor) -> Tensor:
        q = _heads(x)
        return F.scaled_dot_product_attention(q, q, q, is_causal=causal).transpose(1, 2).flatten(2)

    return forward


@block(SEQUENCE, ALIKE)
def masked_attention(draw: Draw, x: Tensor, y: Tensor) -> Body:
    as_bool = draw.chance(0.5)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], y.shape[1], dtype=torch.bool).tril()
        if not as_bool:
            mask = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, float("-inf"))
        q, k = _heads(x), _heads(y)
        return F.scaled_dot_product_attention(q, k, k, attn_mask=mask, scale=0.3)

    return forward


@block(SEQUENCE)
def grouped_query_attention(draw: Draw, x: Tensor) -> Body:
    width = x.shape[-1]

    def forward(x: Tensor) -> Tensor:
        q, k = _heads(x), _heads(x[..., : width // 2], 1)
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    return forward


@block(SEQUENCE)
def spelled_attention(draw: Draw, x: Tensor) -> Body:
    def forward(x: Tensor) -> Tensor:
        scores = x @ x.mT / math.sqrt(x.shape[-1])
        hidden = torch.triu(torch.full((x.shape[1], x.shape[1]), -1e4, dtype=x.dtype), diagonal=1)
        return (scores + hidden).softmax(-1) @ x

    return forward


class _Heads(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype, with_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True, dtype=dtype)
        self.with_weights = with_weights

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made, weights = self.attention(x, x, x, need_weights=self.with_weights)
        return (made, weights) if self.with_weights else (made,)


@block(Takes("wide", 3, 3, even=-1))
def multihead_attention(draw: Draw, x: Tensor) -> Body:
    return _Heads(x.shape[-1], x.dtype, draw.chance(0.5))


@block(Takes("wide", 3, 3, even=-1))
def encoder_layer(draw: Draw, x: Tensor) -> Body:
    return nn.TransformerEncoderLayer(x.shape[-1], 2, 8, norm_first=draw.chance(0.5), batch_first=True, dtype=x.dtype)


@block(Takes("wide", 3, 3, even=-1), ALIKE)
def decoder_layer(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return nn.TransformerDecoderLayer(x.shape[-1], 2, 8, activation="gelu", batch_first=True, dtype=x.dtype)


@block(SEQUENCE)
def rotary(draw: Draw, x: Tensor) -> Body:
    def forward(x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        angles = torch.cat([steps / 10 ** torch.arange(x.shape[-1] // 2, dtype=x.dtype)] * 2, -1)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    return forward


class _Gate(nn.Module):
    def __init__(self, width: int, dtype: torch.dtype, act: str) -> None:
        super().__init__()
        self.both = nn.Linear(width, 12, dtype=dtype)
        self.down = nn.Linear(6, width, dtype=dtype)
        self.act = getattr(F, act)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(self.act(gate) * up)


@block(floats(1))
def gated(draw: Draw, x: Tensor) -> Body:
    return _Gate(x.shape[-1], x.dtype, draw.choice(("silu", "gelu", "sigmoid")))


class _Experts(nn.Module):
    """The best of a few layers for each row, by a router that weighs them."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3, dtype=dtype)
        self.experts = nn.ModuleList(nn.Linear(width, width, dtype=dtype) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares, chosen = self.router(x).softmax(-1).topk(2, -1)
        weights = torch.zeros_like(self.router(x)).scatter(-1, chosen, shares)
        return sum(expert(x) * weights[..., i : i + 1] for i, expert in enumerate(self.experts))


@block(floats(2, 3))
def experts(draw: Draw, x: Tensor) -> Body:
    return _Experts(x.shape[-1], x.dtype)
