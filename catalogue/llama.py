"""A Llama decoder: RMS norm, SwiGLU, grouped-query attention and rotary embedding."""

import torch
from torch import Tensor, nn

from catalogue import entry
from catalogue.grouped_query_attention import GroupedQueryAttention


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = GroupedQueryAttention(width)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = SwiGLU(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


@entry("decoder", inputs=lambda: (torch.randint(0, 100, (2, 10)),))
class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(100, 32)
        self.layers = nn.ModuleList(LlamaLayer(32) for _ in range(3))
        self.norm = RMSNorm(32)
        self.lm_head = nn.Linear(32, 100, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))
