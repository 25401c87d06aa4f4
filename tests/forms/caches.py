"""Key-value caches as explicit state: in buffers, as inputs and outputs, and as the caches of `transformers`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from tests.forms.form import Family

family = Family("caches")


def tokens(count: int, seed: int) -> Tensor:
    return torch.randn(1, count, 8, generator=torch.Generator().manual_seed(seed))


class BufferedAttention(nn.Module):
    """One head that writes keys and values at a position into its buffers."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.write = write
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 6, 8))
        self.register_buffer("values", torch.zeros(1, 6, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        for cache, new in ((self.keys, k), (self.values, v)):
            if self.write == "index_copy":
                cache.index_copy_(1, position, new)
            elif self.write == "index_put":
                cache[:, position] = new
            else:
                cache.scatter_(1, position[None, :, None].expand_as(new), new)
        seen = torch.arange(6)[None] <= position[:, None]
        return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)


STEPS = tuple((tokens(1, step), torch.tensor([step])) for step in range(4))
for write in ("index_copy", "index_put", "scatter"):
    family.add(f"buffers_written_by_{write}", lambda write=write: BufferedAttention(write).eval(), STEPS)


@family.forward(
    *((tokens(1, step), torch.zeros(1, 6, 8), torch.ones(1, 6, 8), torch.tensor(step)) for step in range(3)),
    parts=lambda: {"kv": nn.Linear(8, 16)},
)
def cache_inputs_written(self: Any, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
    k, v = self.kv(x).chunk(2, -1)
    keys.index_copy_(1, position[None], k)
    values.index_copy_(1, position[None], v)
    return F.scaled_dot_product_attention(x, keys, values)


@family.forward(
    *((tokens(1, step), (torch.randn(1, step + 2, 8), torch.randn(1, step + 2, 8))) for step in range(3)),
    parts=lambda: {"kv": nn.Linear(8, 16)},
    dynamic_shapes=(None, ({1: Dim("past")}, {1: Dim("past")})),
)
def cache_of_growing_size(self: Any, x: Tensor, past: Any) -> Any:
    k, v = self.kv(x).chunk(2, -1)
    keys, values = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
    return F.scaled_dot_product_attention(x, keys, values), (keys, values)


@family.forward(
    (tokens(2, 0), torch.tensor(0)),
    (tokens(2, 1), torch.tensor(2)),
    (tokens(2, 2), torch.tensor(4)),
    parts=lambda: {"buffers": {"cache": torch.zeros(1, 6, 8)}},
)
def slice_at_a_number_from_data(self: Any, x: Tensor, start: Tensor) -> Tensor:
    at = start.item()
    torch._check(at >= 0)
    torch._check(at + 2 <= 6)
    self.cache.narrow(1, at, 2).copy_(x)
    return self.cache.cumsum(1)


@family.forward(*((tokens(3, step),) for step in range(4)), parts=lambda: {"buffers": {"cache": torch.zeros(1, 6, 8)}})
def sliding_window(self: Any, x: Tensor) -> Tensor:
    self.cache.copy_(torch.cat([self.cache[:, 3:], x], 1))
    return self.cache.mean(1)


@family.forward(
    *((tokens(1, step),) for step in range(3)),
    parts=lambda: {"cell": nn.LSTMCell(8, 8), "buffers": {"h": torch.zeros(1, 8), "c": torch.zeros(1, 8)}},
)
def recurrent_state_in_buffers(self: Any, x: Tensor) -> Tensor:
    self.h, self.c = self.cell(x[:, 0], (self.h, self.c))
    return self.h


# -- transformers -----------------------------------------------------------------------------------------------------


def llama(**overrides: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **overrides)).eval()


class FlatCache(nn.Module):
    """A language model whose dynamic cache is passed and returned as keys and values of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = llama()

    def forward(self, ids: Tensor, past: list[tuple[Tensor, Tensor]]) -> Any:
        from transformers import DynamicCache

        out = self.model(ids, past_key_values=DynamicCache(past), use_cache=True)
        return out.logits, [(layer.keys, layer.values) for layer in out.past_key_values.layers]


def past(length: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(length)
    shape = (1, 1, length, 8)
    return [(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(2)]


LENGTH = {2: Dim("past", max=14)}
family.add(
    "dynamic_cache_passed_flat",
    FlatCache,
    tuple((torch.tensor([[step]]), past(step + 3)) for step in range(3)),
    dynamic_shapes=(None, [(LENGTH, LENGTH)] * 2),
)


class StaticCacheModel(nn.Module):
    """A language model with a static cache that lives in its buffers."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import StaticCache

        self.model = llama()
        cache = StaticCache(self.model.config, max_cache_len=8)
        cache.early_initialization(1, 1, 8, torch.float32, torch.device("cpu"))
        for index, layer in enumerate(cache.layers):
            self.register_buffer(f"keys_{index}", layer.keys)
            self.register_buffer(f"values_{index}", layer.values)
        self.layers = len(cache.layers)

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        from transformers import StaticCache

        cache = StaticCache(self.model.config, max_cache_len=8)
        cache.early_initialization(1, 1, 8, torch.float32, torch.device("cpu"))
        for index, layer in enumerate(cache.layers):
            layer.keys, layer.values = getattr(self, f"keys_{index}"), getattr(self, f"values_{index}")
        return self.model(ids, past_key_values=cache, cache_position=position, use_cache=True).logits


family.add(
    "static_cache_in_buffers",
    lambda: StaticCacheModel().eval(),
    tuple((torch.tensor([[step + 1]]), torch.tensor([step])) for step in range(4)),
    on_meta=False,
)
