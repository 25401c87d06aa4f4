"""A BERT encoder: token types and attention mask are given by keyword."""

import torch
from torch import Tensor, nn

from catalogue import entry

WIDTH, HEADS = 32, 4


class Embeddings(nn.Module):
    position_ids: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(100, WIDTH, padding_idx=0)
        self.position_embeddings = nn.Embedding(32, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.register_buffer("position_ids", torch.arange(32).unsqueeze(0), persistent=False)

    def forward(self, ids: Tensor, types: Tensor) -> Tensor:
        positions = self.position_embeddings(self.position_ids[:, : ids.size(1)])
        return self.norm(self.word_embeddings(ids) + self.token_type_embeddings(types) + positions)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12)

    def attend(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.norm1(x + self.attend(x, bias))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


def keywords() -> dict[str, Tensor]:
    types = (torch.arange(12) >= 6).long().expand(2, 12).contiguous()
    mask = (torch.arange(12) < torch.tensor([[12], [9]])).long()
    return {"token_type_ids": types, "attention_mask": mask}


@entry("encoder", inputs=lambda: (torch.randint(1, 100, (2, 12)),), kwargs=keywords)
class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids: Tensor, *, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        x = self.embeddings(input_ids, token_type_ids)
        bias = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return {"last_hidden_state": x, "pooler_output": torch.tanh(self.pooler(x[:, 0]))}
