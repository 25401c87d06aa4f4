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


class Experts(nn.Module):
    """Four experts with gates, of which each token chooses two by its first four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 8, 16) / 4)
        self.down = nn.Parameter(torch.randn(4, 8, 8) / 4)
        self.eval().requires_grad_(False)

    def made(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        gate, up = torch._grouped_mm(rows, self.up, offs=ends).chunk(2, -1)
        return torch._grouped_mm(F.silu(gate) * up, self.down, offs=ends)

    def order(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores, chosen = x.reshape(-1, 8)[:, :4].softmax(-1).topk(2)
        experts, order = torch.sort(chosen.reshape(-1))
        return experts, order, scores.reshape(-1)[order]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        experts, order, weights = self.order(x)
        rows = x.reshape(-1, 8)[order // 2]
        ends = torch.histc(experts.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
        made = self.made(rows, ends) * weights.unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.shape[0])
        return made[inverse].view(-1, 2, made.shape[-1]).sum(1).reshape(*x.shape[:-1], -1)


class OneProduct(Experts):
    """The same with one matrix for each expert."""

    def __init__(self) -> None:
        super().__init__()
        del self.down

    def made(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(rows, self.up, offs=ends)


MORE: dict[str, dict[str, Any]] = {  # sizes of models with experts, and of their attention
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8, "layer_types": ["full_attention"] * 2},
    "deepseek_v3": {
        "num_key_value_heads": 8, "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
    },
}  # fmt: skip
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
