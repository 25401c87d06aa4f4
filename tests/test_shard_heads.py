"""Fewer key and value heads than ranks: every rank computes all of them, and uses those of its queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.sharded_models import collectives, language_model
from torch_ir import IR, ShardError, cost, extract_ir, shard, transformers_plan, verify_sharded

IDS = torch.arange(32).reshape(4, 8) * 7 % 64
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "2 for 4 ranks": ("llama", {"num_key_value_heads": 2}),
    "2 for 4 ranks, by matrix products": ("llama", {"num_key_value_heads": 2, "attn_implementation": "eager"}),
    "1, with norms of heads": ("qwen3", {"num_key_value_heads": 1}),
    "6, which 4 do not divide": ("llama", {"num_key_value_heads": 6, "num_attention_heads": 12, "hidden_size": 48}),
    "with biases": ("qwen2", {"num_key_value_heads": 2}),
}


def graph_of(model: nn.Module) -> IR:
    return extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_heads_that_are_too_few_stay_whole(case: str, fold: bool) -> None:
    """No collective more: two blocks are four all_reduce; the head gathers its logits."""
    kind, sizes = CASES[case]
    model = language_model(kind, **sizes)
    ir = graph_of(model).fold_blocks() if fold else graph_of(model)
    plan = transformers_plan(model.config, ir, ranks=4)
    assert {path.rpartition(".")[2] for path, style in plan.items() if style == "replicate"} == {"k_proj", "v_proj"}
    sharded = shard(ir, plan, {"tp": 4})
    assert collectives(sharded) == {"all_reduce": 4, "all_gather_into_tensor": 1}
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), kwargs={"input_ids": IDS})
    assert is_valid, str(report)


def test_heads_that_can_be_divided_are() -> None:
    """The plan is that of transformers, as it is without `ranks`."""
    model = language_model("llama")
    ir = graph_of(model)
    plan = transformers_plan(model.config, ir)
    assert transformers_plan(model.config, ir, ranks=4) == plan
    assert plan["model.layers.*.self_attn.k_proj"] == "colwise"
    fewer = graph_of(language_model("llama", num_key_value_heads=2))
    assert transformers_plan(model.config, fewer, ranks=2) == transformers_plan(model.config, fewer) == plan


def test_the_graph_and_not_the_configuration_says_how_many_heads_there_are() -> None:
    """`hf:llama` names all models of the kind."""
    ir = graph_of(language_model("llama", num_key_value_heads=2))
    plan = transformers_plan(language_model("llama").config, ir, ranks=4)
    assert plan["model.layers.*.self_attn.v_proj"] == "replicate"


def test_heads_of_queries_are_never_copied() -> None:
    """Six on 4 ranks are divided in padded pieces; to compute all of attention on every rank must be requested."""
    model = language_model("llama", num_attention_heads=6, num_key_value_heads=2, hidden_size=48)
    ir = graph_of(model)
    plan = transformers_plan(model.config, ir, ranks=4)
    assert plan["model.layers.*.self_attn.q_proj"] == "colwise"
    sharded = shard(ir, plan, {"tp": 4})
    queries = [param.placement for param in sharded.params if "q_proj" in str(param.key)]
    assert queries == [("padded(48, 0, 8)",)] * 2
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), kwargs={"input_ids": IDS})
    assert is_valid, str(report)


@pytest.mark.parametrize("ranks", [0, -2, 2.0])
def test_ranks_are_counted(ranks: Any) -> None:
    model = language_model("llama")
    with pytest.raises(ShardError, match=f"ranks must be an integer of at least 1, not {ranks}"):
        transformers_plan(model.config, graph_of(model), ranks=ranks)


def test_attention_that_groups_queries_itself() -> None:
    """`enable_gqa`: a rank's queries share one key head, so it takes that one, not one per query."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.out = nn.Linear(16, 32), nn.Linear(16, 8), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            query, key = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.query, self.key))
            mixed = nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
            return self.out(mixed.transpose(1, 2).flatten(2))

    model = Grouped().eval()
    x = torch.randn(2, 6, 16)
    ir = extract_ir(model, (x,), strict=False)
    sharded = shard(ir, {"query": "colwise", "out": "rowwise"}, {"tp": 4})
    attention = next(node for node in sharded.nodes if "attention" in node.op_type)
    assert [tensor.shape for tensor in attention.inputs] == [(2, 2, 6, 4), (2, 1, 6, 4), (2, 1, 6, 4)]
    assert cost(sharded)[attention.name].flops * 4 == cost(ir)["scaled_dot_product_attention"].flops
    assert collectives(sharded) == {"all_reduce": 1}
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
    assert is_valid, str(report)
