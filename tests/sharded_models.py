"""Small models for tests of sharding, their plans, and the expected collectives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torch_ir import IR
from torch_ir.ir.regroup.functions import op_counts


class MLP(nn.Module):
    """Up and down again, with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    """Attention and a feed-forward net, with biases everywhere."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.head_size = width // heads  # not how many: torch's own parallel styles leave a rank fewer
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm_2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        made = [layer(y) for layer in (self.query, self.key, self.value)]
        heads = [each.view(*each.shape[:2], -1, self.head_size).transpose(1, 2) for each in made]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Tower(nn.Module):
    """A language model of two blocks; the head may share the embedding's weight."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.eval().requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


TENSOR_PARALLEL: dict[str, Any] = {
    "blocks.*.query": "colwise",
    "blocks.*.key": "colwise",
    "blocks.*.value": "colwise",
    "blocks.*.out": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
    "head": "colwise_gather_output",
}


def sequence_parallel() -> dict[str, Any]:
    """A plan of torch's own styles: but for attention and feed-forward nets, every rank has part of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    return {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "blocks.*.norm*": SequenceParallel(),
        **{f"blocks.*.{name}": ColwiseParallel() for name in ("query", "key", "value", "up")},
        **{f"blocks.*.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("out", "down")},
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def language_model(kind: str, **changes: Any) -> nn.Module:
    """A tiny model of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "use_cache": False,
    }
    config = AutoConfig.for_model(kind, **{**sizes, **changes})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def collectives(ir: IR) -> Counter[str]:
    """How often each collective runs; waiting for one is none."""
    counts = {
        name.split(".")[1]: count for name, count in op_counts(ir).items() if name.startswith("_c10d_functional.")
    }
    return Counter({name: count for name, count in counts.items() if name != "wait_tensor"})


def checkpoint(model: nn.Module, folder: Path) -> Path:
    """The weights of a model in several files with an index, as hubs have them."""
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(model.state_dict(), folder, max_shard_size=20_000)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert (folder / "model.safetensors.index.json").is_file()
    return folder
