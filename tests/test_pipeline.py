"""Pipelines: where a graph is cut, the graph of each stage, and what cannot be cut."""

from __future__ import annotations

import math
import random
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn

import catalogue
from catalogue import Entry
from tests.adversarial.shapes import SHAPES
from tests.proof import module
from tests.sharded_models import Tower, language_model
from torch_ir import (
    IR,
    ExecutionError,
    IRExecutor,
    PipelineError,
    extract_ir,
    is_pipeline,
    optimize,
    pipeline_report,
    random_weights,
    sends_of,
    split,
    stage_of,
    verify_pipeline,
)
from torch_ir.llm import extract_llm
from torch_ir.pipeline.in_turn import left_in_turn
from torch_ir.run.executor import flat_inputs
from torch_ir.run.tolerances import compare

pytestmark = pytest.mark.usefixtures("_seeded")
ONE_LAYER = (
    "bitwise", "constants", "control_flow", "inplace", "integer_ops", "moe_gather", "static_cache", "while_loop",
)  # fmt: skip
IDS = torch.arange(16).reshape(2, 8) * 7 % 32


class Steps(nn.Module):
    """Six layers, the third with four times the work, a residual around each, and the input again at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8 if at != 2 else 32), nn.ReLU(), nn.Linear(8 if at != 2 else 32, 8))
            for at in range(6)
        )
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for layer in self.layers:
            y = y + layer(y)
        return y * x


class Counting(nn.Module):
    """A buffer that the first layer reads and the last changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.register_buffer("seen", torch.zeros(()))
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[1](self.layers[0](x))
        x = self.layers[2](x + self.seen)
        self.seen.add_(x.sum())
        return self.layers[3](x)


def captured(model: nn.Module, *inputs: Any) -> IR:
    return extract_ir(model, inputs, strict=False)


def same(ir: IR, pipeline: IR, inputs: Any, weights: Any, kwargs: Any = None) -> bool:
    """Whether all stages, run as separate graphs, return the graph's results bit for bit."""
    values = flat_inputs(ir, tuple(inputs), kwargs or {})
    outputs = left_in_turn(pipeline, values, weights)[: len(ir.graph_outputs)]
    pairs = zip(IRExecutor(ir, weights).run(values).outputs, outputs, strict=True)
    return not any(compare(one, other, 0.0, 0.0).reason for one, other in pairs)


def firsts(pipeline: IR) -> list[str]:
    return [row.first for row in pipeline_report(pipeline).rows]


def test_a_stage_is_never_guards_alone() -> None:
    """They return nothing; they run with the next stage, and still refuse inputs that take the other branch."""
    model = module(lambda self, x: self.l(x) if x.sum() > 0 else x, l=nn.Linear(4, 4))
    x = torch.ones(2, 4)
    pipeline = split(extract_ir(model, (x,), strict=False, explore=1), 2, anywhere=True)
    assert all(stage_of(pipeline, number).graph_outputs for number in range(2))
    executor = IRExecutor(pipeline, model.state_dict())
    assert torch.equal(executor.execute((x,))[0], model(x))
    with pytest.raises(ExecutionError, match="branches on data"):
        executor.execute((-x,))


def test_a_graph_without_nodes() -> None:
    with pytest.raises(PipelineError, match="no nodes that stages could compute"):
        split(extract_ir(nn.Identity(), (torch.empty(2, device="meta"),)), 2)


def test_a_pipeline_is_a_graph_of_calls() -> None:
    """It is checked, saved, run and drawn like any graph, with the same results."""
    model, x = Steps(), torch.randn(3, 8)
    pipeline = split(captured(model, x), 3)
    assert is_pipeline(pipeline)
    assert [(node.name, node.op_type) for node in pipeline.nodes] == [
        (f"stage{number}", "pipeline.stage") for number in range(3)
    ]
    again = IR.from_json(pipeline.to_json())
    assert again.to_json() == pipeline.to_json()
    (y,) = IRExecutor(again, model.state_dict()).execute((x,))
    assert torch.equal(y, model(x))


@pytest.mark.parametrize("folded", [False, True])
def test_an_optimised_pipeline_is_one(folded: bool) -> None:
    """Nodes of a stage that depend only on weights stay in it, and are computed once for all runs."""
    model = language_model("llama")
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False)
    pipeline = split(ir.fold_blocks() if folded else ir, 2)
    for level in ("clean", "basic", "full"):
        optimised = optimize(pipeline, level)[0]
        assert is_pipeline(optimised)
        assert len(sends_of(optimised)) == 1
        assert verify_pipeline(optimised, model, model.state_dict(), kwargs={"input_ids": IDS})[0]


def test_a_stage_is_a_graph_of_its_own() -> None:
    """Its inputs are the values sent to it and the model inputs that it reads; its weights have their keys."""
    pipeline = split(captured(Steps(), torch.randn(3, 8)), 2)
    assert [(send.value.shape, send.source, send.target) for send in sends_of(pipeline)] == [((3, 8), 0, 1)]
    last = stage_of(pipeline, 1)
    sent = sends_of(pipeline)[0].value.name
    assert [tensor.name for tensor in last.graph_inputs] == [sent, "x"]
    assert {param.key for param in last.params} == {
        f"layers.{layer}.{part}.{kind}" for layer in (3, 4, 5) for part in (0, 2) for kind in ("weight", "bias")
    }
    assert not last.functions
    assert {node.origin.module for node in last.nodes} >= {"layers.3.0", "layers.5.2"}


def test_stages_take_equally_long() -> None:
    """The heavy layer has fewer beside it."""
    pipeline = split(captured(Steps(), torch.randn(300, 8)), 3)
    assert firsts(pipeline) == ["layers.0", "layers.2", "layers.3"]
    assert pipeline_report(pipeline).balance > 0.75


def test_what_several_stages_read_is_sent_to_each() -> None:
    """A value of the first stage that the last reads does not go through those between."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.layers[0](x)
            return self.layers[2](self.layers[1](first)) + first

    ir = captured(Skip().eval(), torch.randn(2, 4))
    pipeline = split(ir, at=["layers.1", "layers.2"])
    assert [(send.value.name, send.source, send.target) for send in sends_of(pipeline)] == [
        ("linear", 0, 1), ("linear", 0, 2), ("linear_1", 1, 2),
    ]  # fmt: skip
    assert same(ir, pipeline, [torch.randn(2, 4)], random_weights(ir))


def test_stages_fit_into_memory() -> None:
    """The fewest stages that fit; the memory of each includes its inputs."""
    ir = captured(Steps(), torch.randn(3, 8))
    whole = pipeline_report(split(ir, 1)).rows[0].memory
    for memory in (whole, whole - 1, 4000, 3300):
        rows = pipeline_report(split(ir, memory=memory)).rows
        assert all(row.memory <= memory for row in rows)
        assert len(rows) >= math.ceil(sum(row.weights for row in rows) / memory)
    assert len(pipeline_report(split(ir, memory=whole)).rows) == 1
    assert len(pipeline_report(split(ir, 4, memory=whole)).rows) == 4


@pytest.mark.parametrize("level", [None, "full"])
@pytest.mark.parametrize("seed", range(4))
def test_no_way_with_fewer_stages_fits(seed: int, level: str | None) -> None:
    """Compared with all cuts of small models with long skips, including precomputed weights."""
    torch.manual_seed(seed)
    ir = captured(Skips(seed), torch.randn(16, 8))
    ir = ir if level is None else optimize(ir, level)[0]
    names = [f"layers.{at}" for at in range(1, 5)]
    ways = [split(ir, at=cuts) if cuts else split(ir, 1) for count in range(5) for cuts in combinations(names, count)]
    most = [max(row.memory for row in pipeline_report(way).rows) for way in ways]
    for memory in sorted(set(most)):
        fewest = min(len(way.nodes) for way, held in zip(ways, most, strict=True) if held <= memory)
        assert len(split(ir, memory=memory).nodes) == fewest
    with pytest.raises(PipelineError, match=r"alone needs|every cut has a stage"):
        split(ir, memory=min(most) - 1)


class Skips(nn.Module):
    """Five layers; each also reads the result of an earlier one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        sizes = [draw.choice([4, 32, 64]) for _ in range(5)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, size), nn.LayerNorm(size), nn.Linear(size, 8)) for size in sizes
        )
        self.skips = [draw.randrange(at + 1) for at in range(5)]
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for layer, skip in zip(self.layers, self.skips, strict=True):
            made.append(layer(torch.cat([made[-1], made[skip]]))[: len(x)] + x)
        return made[-1]


def test_a_model_that_ties_weights_holds_them_in_both_stages() -> None:
    """The embedding is also the head."""
    ir = captured(Tower(tied=True), IDS)
    pipeline = split(ir, 2)
    assert all("embed.weight" in {param.key for param in stage_of(pipeline, at).params} for at in (0, 1))
    assert same(ir, pipeline, [IDS], random_weights(ir))


def test_a_changing_buffer_stays_in_one_stage() -> None:
    """No cut separates its consumers from its update, and the stage keeps the new value."""
    model, x = Counting(), torch.randn(2, 4)
    ir = captured(model, x)
    pipeline = split(ir, 3)
    holders = [at for at in range(3) if "seen" in {param.key for param in stage_of(pipeline, at).params}]
    assert len(holders) == 1
    stage = stage_of(pipeline, holders[0])
    assert [target.key for target, _ in stage.mutations] == ["seen"]
    assert same(ir, pipeline, [x], model.state_dict())
    with pytest.raises(PipelineError, match=r"no stage can begin with 'sum_1': a buffer is read before it"):
        split(ir, at=["sum_1"])


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_language_models_send_their_hidden_states_alone(kind: str) -> None:
    """Masks and positions are computed in every stage that needs them; so it is with layers as calls."""
    model = language_model(kind)
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, strict=False)
    for graph in (ir, ir.fold_blocks()):
        pipeline = split(graph, 2)
        assert [send.value.shape for send in sends_of(pipeline)] == [(2, 8, model.config.hidden_size)]
        assert verify_pipeline(pipeline, model, model.state_dict(), kwargs={"input_ids": IDS})[0]


def test_sizes_stay_open() -> None:
    """Every stage gets the sizes that it uses from its inputs."""
    model = language_model("llama")
    dims = {"input_ids": {0: torch.export.Dim("batch", min=2, max=8), 1: torch.export.Dim("seq", min=2, max=64)}}
    ir = extract_ir(model, (), kwargs={"input_ids": IDS}, dynamic_shapes=dims, strict=False)
    pipeline = split(ir, 2, sizes={"batch": 2, "seq": 8})
    assert set(stage_of(pipeline, 1).symbols) == {"batch", "seq"}
    assert pipeline_report(pipeline).rows[0].sends == f"{4 * model.config.hidden_size}*batch*seq"
    ids = torch.arange(15).reshape(3, 5)
    assert verify_pipeline(pipeline, model, model.state_dict(), kwargs={"input_ids": ids})[0]


def test_prefill_and_decode_are_cut_alike() -> None:
    """Each stage keeps the caches of its own layers, and only hidden states are sent."""
    config = language_model("llama").config
    config.use_cache = True
    ir = extract_llm(config)
    pipeline = split(ir, 2)
    decode = pipeline.functions["decode"]
    assert firsts(pipeline) == firsts(decode)
    assert len(sends_of(decode)) == 1
    caches = [[t.name for t in stage_of(decode, at).graph_inputs if "cache" in t.name] for at in (0, 1)]
    assert caches[0]
    assert caches[1]
    assert not set(caches[0]) & set(caches[1])
    with pytest.raises(PipelineError, match="several entry points, which are cut between the same layers"):
        split(ir, 2, anywhere=True)


def cut_and_compared(entry: Entry) -> list[str]:
    """Why a model is not cut between layers, or anywhere; otherwise its stages return the same bits."""
    refused = []
    torch.manual_seed(0)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    ir = extract_ir(model, inputs, kwargs=kwargs, strict=False)
    weights = {**random_weights(ir), **model.state_dict()}
    for options in ({}, {"anywhere": True}):
        try:
            pipeline = split(ir, 2, **options)
        except PipelineError as error:
            refused.append(str(error))
        else:
            assert same(ir, pipeline, inputs, weights, kwargs)
    return refused


@pytest.mark.parametrize("name", ["buffer_mutation", "moe", "nested_inputs", "siamese", "unet"])
def test_models_of_the_catalogue_can_be_cut(name: str) -> None:
    """Skips over several stages, modules that are called twice, trees of inputs, buffers."""
    assert not cut_and_compared(catalogue.find(name))


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_model_of_the_catalogue_can_be_cut(entry: Entry) -> None:
    """All of them, but for eight that have one layer."""
    none = (
        "the graph has 1 layer, too few for 2 stages; cut deeper with depth=2 (--depth), or anywhere=True (--anywhere)"
    )
    assert cut_and_compared(entry) == ([none] if entry.name in ONE_LAYER else [])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "give the number of stages, the memory of each, or `at`, where they begin"),
        ({"stages": 2, "at": ["layers.3"]}, "give either `at`, or `stages` and `memory`, not both"),
        ({"stages": 0}, "stages must be at least 1, not 0"),
        ({"stages": "2"}, "stages must be at least 1, not '2'"),
        ({"stages": 2.5}, "stages must be at least 1, not 2.5"),
        ({"memory": "80GB"}, "memory must be at least 1, not '80GB'"),
        ({"at": "layers.3"}, r"`at` must be a list of names: at=\['layers.3'\]"),
        ({"stages": 9}, "the graph has 6 layers, too few for 9 stages"),
        ({"memory": 100}, "layer 'layers.0' alone needs"),
        ({"stages": 2, "memory": 3300}, "2 stages of 3.30 kB are too few; the graph needs at least 3"),
        ({"at": ["layers.33"]}, "unknown module or node 'layers.33'; did you mean"),
        ({"at": ["layers.3", "layers.1"]}, "'layers.1' does not come after 'layers.3'"),
        ({"at": ["layers.0"]}, "'layers.0' begins the first stage anyway"),
    ],
)
def test_what_cannot_be_asked_for(options: dict[str, Any], told: str) -> None:
    """One sentence each."""
    ir = captured(Steps(), torch.randn(3, 8))
    with pytest.raises(PipelineError, match="^" + told.replace(".", r"\.")):
        split(ir, **options)


def test_what_cannot_be_cut() -> None:
    """Random numbers, data-dependent sizes, and graphs that are already pipelines."""
    x = torch.randn(4, 4)
    drawing = captured(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), x)
    with pytest.raises(PipelineError, match="draws random numbers"):
        split(drawing, 2)

    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0].sin().exp()

    with pytest.raises(PipelineError, match="depends on data"):
        split(captured(Chosen().eval(), x), 2, anywhere=True)

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.layers[1](self.layers[0](x)), self.layers[0].weight

    with pytest.raises(PipelineError, match="output 'p_layers_0_weight' is a weight, which no stage computes"):
        split(captured(Weights().eval().requires_grad_(False), x), 2)
    ir = captured(Steps(), torch.randn(3, 8))
    pipeline = split(ir, 2)
    with pytest.raises(PipelineError, match="is already a pipeline"):
        split(pipeline, 2)
    with pytest.raises(PipelineError, match="is not a pipeline; make one with split"):
        stage_of(ir, 0)
    with pytest.raises(PipelineError, match="unknown stage 2; the pipeline has 2, numbered from 0"):
        stage_of(pipeline, 2)


def test_copies_of_shared_nodes_are_bounded() -> None:
    """A file of 600 nodes whose 150 stages would each have up to 150 nodes that compute masks."""
    ir = SHAPES["attention layers"](600)
    with pytest.raises(PipelineError, match="152 stages would have too many copies of 153 nodes that they share"):
        split(ir, at=[node.name for node in ir.nodes[4::4]])
