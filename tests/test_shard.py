"""Sharded graphs: results, memory and traffic of each rank; valid plans, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.export import Dim

from tests.graphs import mlp
from tests.sharded_models import MORE, TENSOR_PARALLEL, Tower, collectives, language_model, sequence_parallel
from torch_ir import IR, ShardError, cost, cost_report, diff, extract_ir, shard, transformers_plan, verify_sharded
from torch_ir.ir.graph.placements import Shard, parse
from torch_ir.llm.caches import Caches
from torch_ir.llm.entry_points import DecoderOnly
from torch_ir.ops.torch_types import TORCH_DTYPES

IDS = torch.arange(32).reshape(4, 8) * 7 % 32


def graph_of(model: nn.Module) -> IR:
    return extract_ir(model, (IDS,), strict=False)


def check(sharded: IR, model: nn.Module) -> None:
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fold", [False, True])
def test_one_sum_per_attention_and_per_feed_forward_net(ranks: int, fold: bool) -> None:
    """As Megatron does it: two blocks are four all_reduce; the head gathers its logits."""
    torch.manual_seed(0)
    model = Tower()
    ir = graph_of(model)
    sharded = shard(ir.fold_blocks() if fold else ir, TENSOR_PARALLEL, {"tp": ranks})
    assert collectives(sharded) == {"all_reduce": 4, "all_gather_into_tensor": 1}
    check(sharded, model)


def test_the_text_says_where_tensors_lie() -> None:
    """Operators are unchanged; their sizes are those of shards."""
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 8, bias=False)).eval()
    ir = extract_ir(model, (torch.ones(3, 8),), strict=False)
    sharded = shard(ir, {"0": "colwise", "2": "rowwise"}, {"tp": 4})
    assert str(sharded) == (
        "graph Sequential(input: float32[3, 8] on replicate) {\n"
        "  mesh tp = 4\n"
        '  param p_0_weight: float32[4, 8] on shard(0) = "0.weight"\n'
        '  param p_2_weight: float32[8, 4] on shard(1) = "2.weight"\n'
        "  linear: float32[3, 4] on shard(1) = aten.linear.default(input=input, weight=p_0_weight, bias=None)\n"
        "  relu: float32[3, 4] on shard(1) = aten.relu.default(self=linear)\n"
        "  linear_1: float32[3, 8] on partial(sum) = aten.linear.default(input=relu, weight=p_2_weight, bias=None)\n"
        "  all_reduce: float32[3, 8] = _c10d_functional.all_reduce.default("
        "input=linear_1, reduce_op='sum', group_name='tp')\n"
        "  wait_tensor: float32[3, 8] on replicate = _c10d_functional.wait_tensor.default(tensor=all_reduce)\n"
        "  return wait_tensor\n"
        "}\n"
    )


@pytest.mark.parametrize("fold", [False, True])
def test_sequence_parallel_scatters_sums_and_gathers_before_columns(fold: bool) -> None:
    """Per block two of each; one more to scatter the embedding, one for the head's input, one for its logits."""
    model = Tower()
    ir = graph_of(model)
    sharded = shard(ir.fold_blocks() if fold else ir, sequence_parallel(), {"tp": 2})
    assert collectives(sharded) == {"reduce_scatter_tensor": 5, "all_gather_into_tensor": 6}
    check(sharded, model)


def test_functions_are_sharded_once_and_give_the_same_graph() -> None:
    """All equal layers stay calls of one function."""
    ir = graph_of(Tower())
    flat, folded = shard(ir, TENSOR_PARALLEL, {"tp": 2}), shard(ir.fold_blocks(), TENSOR_PARALLEL, {"tp": 2})
    assert list(folded.functions) == ["Block"]
    assert diff(flat, folded).is_equal


@pytest.mark.parametrize("embedding", ["embedding_rowwise", "embedding_colwise", "rowwise", "colwise"])
def test_an_embedding_is_cut_by_rows_or_columns(embedding: str) -> None:
    """A rank without the row of a token returns zeros for it."""
    model = Tower()
    check(shard(graph_of(model), {"embed": embedding, **TENSOR_PARALLEL}, {"tp": 4}), model)


def test_a_tied_weight_that_is_wanted_in_two_ways_stays_whole() -> None:
    """The head takes its rows of the embedding's weight once, when weights are bound."""
    model = Tower(tied=True)
    ir = graph_of(model)
    sharded = shard(ir, TENSOR_PARALLEL, {"tp": 2})
    tied = next(param for param in sharded.params if param.param and len(param.param.keys) == 2)
    assert tied.placement == ("replicate",)
    assert {row.node.op_type for row in cost(sharded).once.nodes} >= {"aten.index_select.default"}
    check(sharded, model)


@pytest.mark.parametrize("order", [("dp", "tp"), ("tp", "dp")])
@pytest.mark.parametrize("plan", ["tensor", "sequence"])
def test_axes_are_sharded_one_after_the_other(order: tuple[str, str], plan: str) -> None:
    """In either order; the mesh has both, and every tensor has a placement on each."""
    model = Tower()
    ir = graph_of(model)
    for axis in order:
        if axis == "dp":
            ir = shard(ir, {}, {"dp": 2}, inputs={"ids": "shard(0)"})
        else:
            ir = shard(ir, TENSOR_PARALLEL if plan == "tensor" else sequence_parallel(), {"tp": 2})
    assert ir.mesh == dict.fromkeys(order, 2)
    assert len(ir.graph_inputs[0].placement or ()) == 2
    check(ir, model)


def test_outputs_may_stay_cut() -> None:
    """Sharded logits need no gather."""
    model = Tower()
    sharded = shard(graph_of(model), {**TENSOR_PARALLEL, "head": "colwise"}, {"tp": 2}, outputs={"*": "shard(-1)"})
    assert sharded.graph_outputs[0].placement == ("shard(2)",)
    assert collectives(sharded) == {"all_reduce": 4}
    check(sharded, model)


def test_open_sizes_stay_open() -> None:
    """Dimensions that are not sharded may have any size."""
    model = Tower()
    ir = extract_ir(model, (IDS,), strict=False, dynamic_shapes={"ids": {0: Dim("batch"), 1: Dim("seq")}})
    sharded = shard(ir, TENSOR_PARALLEL, {"tp": 2})
    assert sharded.graph_inputs[0].shape == ("batch", "seq")
    for ids in (IDS, IDS[:3, :5]):
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (ids,))
        assert is_valid, str(report)


# -- transformers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3", "deepseek_v3"])
def test_the_plans_of_transformers(kind: str) -> None:
    """From the configuration alone: as many sums as blocks of attention and of experts."""
    model = language_model(kind, **MORE.get(kind, {}))
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False).fold_blocks()
    sharded = shard(ir, transformers_plan(model.config, ir), {"tp": 2})
    assert collectives(sharded)["all_reduce"] == SUMS.get(kind, 4)
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), kwargs={"input_ids": IDS})
    assert is_valid, str(report)


SUMS = {"deepseek_v3": 3}  # its plan leaves attention whole, and has one sum for shared experts


@pytest.mark.parametrize("fold", [False, True])
def test_whole_experts_on_each_rank(fold: bool) -> None:
    """Each rank computes the rows of its own experts; one sum combines them."""
    model = language_model("mixtral", num_local_experts=4)
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False)
    plan = transformers_plan(model.config, ir, expert_parallel=True)
    sharded = shard(ir.fold_blocks() if fold else ir, plan, {"tp": 2})
    assert collectives(sharded) == {"all_reduce": 4, "all_gather_into_tensor": 1}
    experts = next(param for param in sharded.params if param.key == "model.layers.0.mlp.experts.down_proj")
    assert experts.shape == (2, 32, 48)
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), kwargs={"input_ids": IDS})
    assert is_valid, str(report)


def test_caches_are_cut_by_heads() -> None:
    """A decode step has the same collectives as a prompt: every rank keeps the keys and values of its own heads."""
    model = language_model("llama", use_cache=True)
    calls = DecoderOnly(model, Caches.of(model.config, 32), 2, 8)
    prefill = calls.prefill()
    call = calls.decode(extract_ir(prefill.model, (), kwargs=prefill.inputs, strict=False))
    ir = extract_ir(call.model, (), kwargs=call.inputs, strict=False)
    cut = {"cache_*": "shard(1)", "index_copy*": "shard(1)"}
    sharded = shard(ir, transformers_plan(model.config, ir), {"tp": 2}, inputs=cut, outputs=cut)
    assert collectives(sharded) == {"all_reduce": 4, "all_gather_into_tensor": 1}
    values = [torch.ones(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype]) for tensor in ir.graph_inputs]
    is_valid, report = verify_sharded(sharded, ir, call.model.state_dict(), values)
    assert is_valid, str(report)


# -- cost -------------------------------------------------------------------------------------------------------------


def test_the_cost_tells_what_a_rank_sends() -> None:
    """An all_reduce over n ranks sends 2 (n - 1) / n of its bytes, a gather n - 1 pieces."""
    ir = graph_of(Tower())
    sharded = shard(ir, TENSOR_PARALLEL, {"tp": 4})
    sums, logits = 4 * 8 * 16 * 4, 4 * 8 * 32 * 4
    costs = cost(sharded)
    assert costs["all_reduce"].communication == 2 * 3 * sums // 4
    assert costs.communication == 4 * 2 * 3 * sums // 4 + 3 * logits // 4
    assert costs.flops * 4 == cost(ir).flops
    assert cost(ir).communication == 0
    report = cost_report(sharded, by="op")
    assert [(row.name.split(".")[1], row.count) for row in report.collectives] == [
        ("all_reduce", 4),
        ("all_gather_into_tensor", 1),
    ]
    assert "sent by each rank: 12.3 kB in 4 all_reduce calls" in str(report)
    assert report.to_dict()["total"]["communication"] == costs.communication


def test_what_is_sent_is_told_of_open_sizes_too() -> None:
    ir = extract_ir(Tower(), (IDS,), strict=False, dynamic_shapes={"ids": {0: Dim("batch")}})
    sharded = shard(ir, TENSOR_PARALLEL, {"tp": 4})
    assert (
        cost(sharded, {"batch": 4}).communication
        == cost(shard(graph_of(Tower()), TENSOR_PARALLEL, {"tp": 4})).communication
    )
    assert "batch" in str(cost(sharded).communication)


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], dict[str, int], dict[str, Any], str]] = [
    (
        {"blocks.*.up": "packed_colwise"},
        {"tp": 3},
        {},
        r"blocks.0.up.weight: .* packed parts, .* 3 ranks",
    ),
    ({"block.*.query": "colwise"}, {"tp": 2}, {}, r"'block.\*.query' matches no module.*mean 'blocks.\*.query'"),
    ({"blocks.*.up": "colwize"}, {"tp": 2}, {}, "unknown style 'colwize'; did you mean 'colwise'"),
    ({"blocks.*.up": {"rows": "shard(0)"}}, {"tp": 2}, {}, "'rows' must be one of matrix, vector"),
    ({"blocks.*.up": {"matrix": "split(0)"}}, {"tp": 2}, {}, r"invalid placement 'split\(0\)'"),
    ({"blocks.*.up": 7}, {"tp": 2}, {}, "unknown style int"),
    ({}, {"tp": 2, "dp": 2}, {}, "expected one mesh axis, not 2"),
    ({}, {"tp": 0}, {}, "mesh axis 'tp' must have at least 1 rank, not 0"),
    ({}, {"a b": 2}, {}, "invalid name 'a b' of a mesh axis; expected letters, digits and _"),
    ({}, {"dp": 2}, {"inputs": {"ids": "shard(2)"}}, "has no dimension 2 to cut"),
    ({}, {"dp": 2}, {"inputs": {"idz": "shard(0)"}}, "the graph has no input 'idz'; did you mean 'ids'"),
    ({}, {"dp": 2}, {"outputs": {"ids": "shard(0)"}}, "the graph has no output 'ids'"),
    ({}, {"dp": 3}, {"inputs": {"ids": "shard(0)"}}, "input 'ids': dimension 0 .* cannot be divided among 3 ranks"),
]


@pytest.mark.parametrize(("plan", "mesh", "more", "message"), REFUSED)
def test_what_cannot_be_done_is_said_in_one_sentence(
    plan: dict[str, Any], mesh: dict[str, int], more: dict[str, Any], message: str
) -> None:
    """The module or weight, the dimension, the sizes; or the nearest name."""
    with pytest.raises(ShardError, match=message):
        shard(graph_of(Tower()), plan, mesh, **more)


def test_an_axis_is_sharded_once() -> None:
    sharded = shard(graph_of(Tower()), {}, {"tp": 2})
    with pytest.raises(ShardError, match="already sharded along 'tp'"):
        shard(sharded, {}, {"tp": 2})


def test_random_numbers_are_refused() -> None:
    """Every rank would draw its own."""

    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    ir = extract_ir(Noise().eval(), (torch.ones(2, 2),), strict=False)
    with pytest.raises(ShardError, match="draws random numbers"):
        shard(ir, {}, {"tp": 2})


def test_an_open_size_is_not_cut() -> None:
    ir = extract_ir(Tower(), (IDS,), strict=False, dynamic_shapes={"ids": {0: Dim("batch")}})
    with pytest.raises(ShardError, match=r"input 'ids': dimension 0 of 'ids', \['batch', 8\].*specialize"):
        shard(ir, {}, {"dp": 2}, inputs={"ids": "shard(0)"})


def test_placements_are_read_as_they_are_written() -> None:
    for text in ("replicate", "shard(0)", "shard(1, 2)", "partial(sum)", "partial(avg)"):
        assert str(parse(text)) == text
    assert parse(" shard(-1,2) ") == Shard(-1, 2)


@pytest.mark.parametrize("text", ["shard(0, 0)", "shard(0, 2, 2)", "shard(\u0661)", "partial(mean)", "replicate,", ""])
def test_what_is_no_placement_is_refused(text: str) -> None:
    with pytest.raises(ShardError, match=r"invalid placement .*; expected replicate"):
        parse(text)


_LONG = "f" * 10**6


@pytest.mark.parametrize("name", ["base_model_tp_plan", "base_model_ep_plan"])
@pytest.mark.parametrize(
    "plan",
    [
        True, 5, "x", ["x"], [[1]], {5: "colwise"}, {"fc1": ["colwise"]}, {"fc1": None}, {_LONG: "colwise"},
        {f"layer{number}*": "colwise" for number in range(501)},
    ],
    ids=lambda plan: f"{plan!r:.20}",
)  # fmt: skip
def test_a_configuration_whose_plan_is_none(name: str, plan: Any) -> None:
    """A config.json may hold anything where a plan is expected."""
    config = transformers.LlamaConfig()
    config.base_model_tp_plan, config.base_model_ep_plan = {"fc1": "colwise"}, {"fc1": "colwise"}
    setattr(config, name, plan)
    with pytest.raises(ShardError, match=f"{name} of LlamaConfig is not a plan: expected at most 500 module paths"):
        transformers_plan(config, mlp(), expert_parallel=True)


@pytest.mark.parametrize("architectures", [True, 5, "x", [[1]], [5], ["logging"], ["__builtins__"], {"a": 1}])
def test_a_configuration_whose_architectures_are_none(architectures: Any) -> None:
    config = transformers.LlamaConfig()
    config.base_model_tp_plan = {"fc1": "colwise"}
    vars(config)["architectures"] = architectures  # without the check of some versions of transformers
    assert transformers_plan(config, mlp()) == {"fc1": "colwise"}
