"""Collectives and shard shapes of torch's own parallel models, in one forward run.

It has a process of its own, as process groups, even those that are only played, are for all of a process:

    python -m tests.torch_parallel 2
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.sharded_models import MLP, Tower, language_model

IDS = torch.arange(32).reshape(4, 8) * 7 % 32
Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]  # a model, its inputs, and torch's styles for it
_WHOLE = Replicate()
_COLUMNS, _ROWS = ("query", "key", "value", "up"), ("out", "down")


def mlp() -> Case:
    return MLP(), (torch.ones(4, 8),), {"up": ColwiseParallel(), "down": RowwiseParallel()}


def tower() -> Case:
    """As Megatron does it."""
    styles: dict[str, Any] = {f"blocks.*.{name}": ColwiseParallel() for name in _COLUMNS}
    styles |= {f"blocks.*.{name}": RowwiseParallel() for name in _ROWS}
    return Tower(), (IDS,), {**styles, "head": ColwiseParallel(output_layouts=_WHOLE)}


def tower_by_sequence() -> Case:
    """Except attention and feed-forward networks, every rank has part of the sequence; each style must declare it."""
    styles: dict[str, Any] = {f"blocks.*.{name}": ColwiseParallel(input_layouts=Shard(1)) for name in _COLUMNS}
    styles |= {f"blocks.*.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in _ROWS}
    styles |= {name: SequenceParallel() for name in ("blocks.*.norm", "blocks.*.norm_2", "norm")}
    styles["embed"] = RowwiseParallel(input_layouts=_WHOLE, output_layouts=Shard(1))
    return Tower(), (IDS,), {**styles, "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=_WHOLE)}


def llama(key_value_heads: int = 4) -> Case:
    """By the plan of transformers, in torch's styles."""
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    styles: dict[str, Any] = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    styles |= {f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    model = language_model("llama", num_key_value_heads=key_value_heads)
    return model, (IDS,), {**styles, "lm_head": ColwiseParallel(output_layouts=_WHOLE)}


def llama_by_sequence() -> Case:
    """As torch's tutorial does it: attention and feed-forward nets gather the sequence, once each."""
    model, (ids,), styles = llama()
    whole, cut = (_WHOLE,), (Shard(1),)
    layer = "model.layers.*."
    styles |= {
        f"{layer}{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("self_attn.o_proj", "mlp.down_proj")
    }
    norms = (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm")
    styles |= {name: SequenceParallel() for name in norms}
    styles[f"{layer}mlp"] = PrepareModuleInput(input_layouts=cut, desired_input_layouts=whole)
    styles[f"{layer}self_attn"] = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": _WHOLE}
    )
    styles["model.embed_tokens"] = RowwiseParallel(input_layouts=_WHOLE, output_layouts=Shard(1))
    styles["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=_WHOLE)
    positions = torch.arange(8).expand(4, 8)  # the model would count those of a piece
    return model, (ids, None, positions), styles


CASES: dict[str, Callable[[], Case]] = {
    "MLP": mlp,
    "Tower": tower,
    "Tower by sequence": tower_by_sequence,
    "Llama": llama,
    "Llama by sequence": llama_by_sequence,
    "Llama with 2 heads of keys": lambda: llama(2),
}


def played(ranks: int) -> dict[str, dict[str, Any]]:
    """Every case as the first of several ranks runs it; the others are not there."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    found = {name: _rank_of(case(), mesh) for name, case in CASES.items()}
    distributed.destroy_process_group()
    return found


def _rank_of(case: Case, mesh: Any) -> dict[str, Any]:
    model, inputs, styles = case
    parallelize_module(model, mesh, styles)
    shapes = {
        key: list(value.to_local().shape if isinstance(value, DTensor) else value.shape)
        for key, value in model.state_dict().items()
    }
    try:
        with CommDebugMode() as heard, torch.no_grad():
            model(*inputs)
    except RuntimeError as error:
        return {"shapes": shapes, "error": str(error)}
    counts = {str(kind).rpartition(".")[2]: count for kind, count in heard.get_comm_counts().items()}
    return {"shapes": shapes, "collectives": counts}


if __name__ == "__main__":
    print(json.dumps(played(int(sys.argv[1]))))
