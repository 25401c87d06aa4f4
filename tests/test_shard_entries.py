"""Files with several entry points: prefill and decode are sharded in one call, with sharded caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from tests.sharded_models import collectives, language_model
from torch_ir import IR, IRExecutor, ShardError, shard, transformers_plan, verify_sharded
from torch_ir.ir.graph.io_tree import rebuild
from torch_ir.llm import extract_llm, generate
from torch_ir.run.executor import flat_inputs
from torch_ir.sharding import run_in_lockstep, whole_outputs

PROMPT = torch.arange(10).reshape(2, 5) * 7 % 64
STEP = {"all_reduce": 4, "all_gather_into_tensor": 1}  # two layers of attention and a feed-forward net, and the logits

FORMS: dict[str, dict[str, Any]] = {
    "a cache that grows": {},
    "a cache of fixed length": {"cache_length": 16, "batch": 2, "blocks": "function"},
    "padded prompts": {"padding": True},
}


def needed(ir: IR, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    keys = {key for param in ir.params if param.param for key in param.param.keys}
    return {key: value for key, value in weights.items() if key in keys}


def caches(ir: IR) -> list[tuple[str, ...] | None]:
    """Return the placements of the cache tensors, as inputs and as outputs."""
    given = [tensor.placement for tensor in ir.graph_inputs if tensor.name.startswith("cache")]
    return given + [tensor.placement for tensor in ir.graph_outputs[1:]]


@pytest.mark.parametrize(("form", "heads"), [*((form, 4) for form in FORMS), ("a cache that grows", 2)])
def test_both_entry_points_are_divided(form: str, heads: int) -> None:
    """Caches are cut by heads where the plan cuts heads; a step sends no more than the sums and the logits."""
    model = language_model("llama", use_cache=True, num_key_value_heads=heads)
    ir = extract_llm(model, **FORMS[form])
    sharded = shard(ir, transformers_plan(model.config, ir, ranks=4), {"tp": 4})
    decode = sharded.functions["decode"]
    assert collectives(sharded) == collectives(decode) == STEP
    assert sharded.mesh == decode.mesh == {"tp": 4}
    cut = "shard(1)" if heads == 4 else "replicate"
    assert set(caches(sharded)) == set(caches(decode)) == {(cut,)}
    inputs: dict[str, Any] = {"input_ids": PROMPT}
    if form == "padded prompts":
        inputs["attention_mask"] = torch.ones_like(PROMPT)
    is_valid, report = verify_sharded(sharded, ir, model.state_dict(), kwargs=inputs)
    assert is_valid, str(report)
    step = next_step(ir, model.state_dict(), inputs)
    weights = needed(ir.functions["decode"], model.state_dict())
    is_valid, report = verify_sharded(decode, ir.functions["decode"], weights, kwargs=step)
    assert is_valid, str(report)


def next_step(ir: IR, weights: dict[str, Tensor], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of decode after prefill."""
    made = IRExecutor(ir, weights)(**inputs)
    step = {"input_ids": made["logits"][:, -1:].argmax(-1), "cache": dict(made["cache"])}
    taken = {tensor.name for tensor in ir.functions["decode"].graph_inputs}
    if "position" in taken:
        step["position"] = torch.tensor(PROMPT.shape[1])
    if "attention_mask" in taken:
        step["attention_mask"] = torch.ones(2, PROMPT.shape[1] + 1, dtype=torch.int64)
    return step


@pytest.mark.parametrize("heads", [2, 4])
def test_tokens_of_ranks_are_those_of_one(heads: int) -> None:
    """The caches of prefill are the inputs of decode, token after token."""
    model = language_model("llama", use_cache=True, num_key_value_heads=heads)
    ir = extract_llm(model, blocks="function")
    weights = model.state_dict()
    sharded = shard(ir, transformers_plan(model.config, ir, ranks=4), {"tp": 4})
    output, tokens = called(sharded, weights, input_ids=PROMPT), []
    for _ in range(4):
        tokens.append(output["logits"][:, -1:].argmax(-1))
        decode = sharded.functions["decode"]
        output = called(decode, needed(decode, weights), input_ids=tokens[-1], cache=output["cache"])
    assert torch.equal(torch.cat(tokens, 1), generate(ir, weights, 4, input_ids=PROMPT))


def called(ir: IR, weights: dict[str, Tensor], **inputs: Any) -> Any:
    """One entry point on all ranks; its outputs are put together."""
    results = run_in_lockstep(ir, flat_inputs(ir, (), inputs), weights)
    return rebuild(ir.output_tree, whole_outputs(ir, results))


def test_the_next_axis_divides_all_entry_points_too() -> None:
    """Halves of the batch: caches are sharded on both axes, because no other placement was requested."""
    model = language_model("llama", use_cache=True)
    ir = extract_llm(model, batch=2)
    by_heads = shard(ir, transformers_plan(model.config, ir, ranks=2), {"tp": 2})
    sharded = shard(by_heads, {}, {"dp": 2}, inputs={"input_ids": "shard(0)"})
    decode = sharded.functions["decode"]
    assert decode.mesh == {"tp": 2, "dp": 2}
    assert set(caches(sharded)) == set(caches(decode)) == {("shard(1)", "shard(0)")}
    weights = needed(decode, model.state_dict())
    step = next_step(ir, model.state_dict(), {"input_ids": PROMPT})
    is_valid, report = verify_sharded(decode, ir.functions["decode"], weights, kwargs=step)
    assert is_valid, str(report)


def test_who_asks_for_whole_caches_gets_them() -> None:
    """An explicit placement has priority, and the other entry point follows."""
    model = language_model("llama", use_cache=True)
    ir = extract_llm(model)
    names = dict.fromkeys((tensor.name for tensor in ir.graph_outputs[1:]), "replicate")
    sharded = shard(ir, transformers_plan(model.config, ir), {"tp": 2}, outputs=names)
    assert set(caches(sharded)) == {("replicate",)}
    given = [tensor.placement for tensor in sharded.functions["decode"].graph_inputs]
    assert set(given) == {("replicate",)}


def test_what_is_wrong_in_one_entry_point_is_told() -> None:
    model = language_model("llama", use_cache=True)
    ir = extract_llm(model)
    with pytest.raises(ShardError, match=r"input 'cache_layers_0_key': dimension 2 .*'past', .*which is open"):
        shard(ir, {}, {"tp": 2}, inputs={"cache_*": "shard(2)"})


def test_caches_of_an_encoder_are_cut_by_heads() -> None:
    """Prefill produces them, and decode reads them in every step; a custom plan applies to both."""
    config = T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4, vocab_size=64, dropout_rate=0.0
    )
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(config).eval()
    ir = extract_llm(model)
    attention = "*coder.block.*.layer.*.*Attention."
    plan = {f"{attention}{name}": "colwise" for name in "qkv"} | {f"{attention}o": "rowwise"}
    sharded = shard(ir, plan, {"tp": 2})
    decode = sharded.functions["decode"]
    assert set(caches(sharded)) == set(caches(decode)) == {("shard(1)",)}
    assert collectives(decode) == {"all_reduce": 2}
    inputs = {"input_ids": PROMPT, "decoder_input_ids": torch.zeros(2, 1, dtype=torch.int64)}
    is_valid, report = verify_sharded(sharded, ir, model.state_dict(), kwargs=inputs)
    assert is_valid, str(report)
