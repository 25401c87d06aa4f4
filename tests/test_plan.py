"""Plans: equal to brute force on small graphs, never slower than transformers' plans, right when they are applied."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from tests.cpu_time import at_most
from tests.sharded_models import Experts, OneProduct, Tower, language_model
from torch_ir import (
    IR,
    Cluster,
    PlanError,
    ShardError,
    cost,
    extract_ir,
    find_plan,
    liveness,
    optimize,
    pipeline_report,
    shard,
    transformers_plan,
    verify_pipeline,
    verify_sharded,
)
from torch_ir.analysis import Link, Roofline
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.planning.candidates import shortened
from torch_ir.planning.layouts import layouts
from torch_ir.planning.plan_report import kinds_of

SUMMED = {"matrix": "shard(-1)", "inputs": "shard(-1)"}
STYLES: list[Any] = [
    None, "colwise", "rowwise", SUMMED, {**SUMMED, "outputs": "shard(1)"}, {**SUMMED, "outputs": "shard(0)"},
]  # fmt: skip
DEVICES = {
    "balanced": (Roofline(1e9, 1e9), Link(1e9, 1e-7)),
    "slow memory": (Roofline(1e9, 1e8), Link(1e8, 1e-9)),
    "slow links": (Roofline(1e8, 1e9), Link(1e7, 1e-6)),
}
ONE_DEVICE = [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "balanced")) for kind in DEVICES]
IDS = torch.arange(32).reshape(4, 8) * 7 % 32


class Block(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.norm, self.layers = nn.LayerNorm(8), nn.Sequential(*(nn.Linear(8, 8) for _ in range(count)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.layers(self.norm(x)))


def blocks(depth: int, count: int) -> IR:
    model = nn.Sequential(*(Block(count) for _ in range(depth))).eval()
    return extract_ir(model, (torch.ones(2, 4, 8),), strict=False).fold_blocks()


def cluster(kind: str, devices: int = 2, memory: float = 1e9) -> Cluster:
    device, link = DEVICES[kind]
    return Cluster(devices, memory, device, link, link)


def seconds(ir: IR, given: Cluster) -> float:
    return Clock(given.device, given.network, ir.mesh).graph(cost(ir).per_run).seconds


def brute_force(ir: IR, given: Cluster, options: Mapping[str, list[Any]]) -> Iterator[tuple[float, int, bool]]:
    """Yield the time and memory of each combination of styles and placements, and whether it divides anything."""
    for work, mesh, size, divides in _divisions(ir.to_json(), given.devices, json.dumps(options)):
        yield Clock(given.device, given.network, mesh).graph(work).seconds, size, divides


@functools.cache  # for tests that differ in their devices alone
def _divisions(text: str, devices: int, choices: str) -> list[tuple[Any, Mapping[str, int], int, bool]]:
    """Return the costs, the mesh and the memory of each combination, and whether it divides anything."""
    ir, options = IR.from_json(text), json.loads(choices)
    found = []
    places = [None, "shard(0)", "shard(1)"]
    for place, output, *styles in itertools.product(places, [None, "shard(0)"], *options.values()):
        rows = {path: style for path, style in zip(options, styles, strict=True) if style is not None}
        inputs, outputs = ({} if each is None else {"*": each} for each in (place, output))
        try:
            sharded = shard(ir, rows, {"tp": devices}, inputs=inputs, outputs=outputs)
        except ShardError:
            continue
        memory = liveness(sharded)
        number = sum(8 for param in sharded.params if param.key == "mesh.tp")  # the rank itself
        size = int(memory.weights) + int(memory.inputs) - number
        found.append((cost(sharded).per_run, sharded.mesh, size, bool(rows or inputs)))
    return found


def unbeaten(found: Iterator[tuple[float, int, bool]]) -> list[tuple[float, int]]:
    """Return the combinations that no other beats in both time and memory, if they divide anything."""
    kept: list[tuple[float, int, bool]] = []
    for item in sorted(found):
        if not kept or item[1] < kept[-1][1]:
            kept.append(item)
    return [(time, size) for time, size, divides in kept if divides]


def check_brute_force(kind: str, depth: int, count: int) -> None:
    """Compare with all combinations of styles of `count` linear layers in each of `depth` equal blocks."""
    ir, given = blocks(depth, count), cluster(kind)
    options = {f"*.layers.{number}": STYLES for number in range(count)}
    expected = unbeaten(brute_force(ir, given, options))
    found = [(each.seconds, each.bytes) for each in layouts(ir, "tp", 2, given, {})]
    assert [size for _, size in found] == [size for _, size in expected]
    assert [time for time, _ in found] == pytest.approx([time for time, _ in expected], rel=1e-9)


@pytest.mark.parametrize("kind", DEVICES)
def test_a_small_search_equals_brute_force(kind: str) -> None:
    """One linear layer in each of two blocks: the same trade-offs of time and memory."""
    check_brute_force(kind, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", DEVICES)
def test_searches_equal_brute_force(kind: str, depth: int) -> None:
    """Two linear layers in each block."""
    check_brute_force(kind, depth, 2)


STACK: list[Any] = [None, "grouped_gemm", "colwise", "rowwise", "packed_colwise", {"matrix": "shard(-1, 2)"}]


def check_experts(kind: str, model: nn.Module, weights: tuple[str, ...]) -> None:
    """Compare with all combinations of styles of weights of experts, and what is done with tokens and sums."""
    ir, given = extract_ir(model, (torch.randn(4, 4, 8),), strict=False), cluster(kind)
    options = {**{f"0.{name}": STACK for name in weights}, "0": [None, "all_to_all", {"outputs": "shard(0)"}]}
    expected = unbeaten(brute_force(ir, given, options))
    found = [(each.seconds, each.bytes) for each in layouts(ir, "tp", 2, given, {})]
    assert [size for _, size in found] == [size for _, size in expected]
    assert [time for time, _ in found] == pytest.approx([time for time, _ in expected], rel=1e-9)


@pytest.mark.parametrize("kind", DEVICES)
def test_experts_equal_brute_force(kind: str) -> None:
    """One product with the weights of four experts: which tokens a rank gets, and which weights it has."""
    check_experts(kind, nn.Sequential(OneProduct()).eval(), ("up",))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEVICES)
def test_gated_experts_equal_brute_force(kind: str) -> None:
    """Two products with an activation between them, added to the tokens as in a layer."""

    class Layer(Experts):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + super().forward(x)

    check_experts(kind, nn.Sequential(Layer()).eval(), ("up", "down"))


@pytest.mark.parametrize("kind", ONE_DEVICE)
def test_an_odd_vocabulary_equals_brute_force(kind: str) -> None:
    """Seven tokens on two ranks: rows of the table and of the head are padded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7)).eval()
    ir, given = extract_ir(model, (torch.arange(8).reshape(2, 4) % 7,), strict=False), cluster(kind)
    ends = [{"outputs": place} for place in ("shard(1)", "shard(0)")]
    table = [None, "embedding_rowwise", "embedding_colwise", *ends, *({"matrix": "shard(0)", **each} for each in ends)]
    expected = unbeaten(brute_force(ir, given, {"0": table, "1": STYLES}))
    found = [(each.seconds, each.bytes) for each in layouts(ir, "tp", 2, given, {})]
    assert [size for _, size in found] == [size for _, size in expected]
    assert [time for time, _ in found] == pytest.approx([time for time, _ in expected], rel=1e-9)
    assert min(size for _, size in found) < 4 * (7 * 8 + 7 * 8 + 7)  # something is divided


class OneAttention(nn.Module):
    """Causal attention of one head after one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True).squeeze(1)


@pytest.mark.parametrize("kind", DEVICES)
def test_attention_over_a_divided_sequence_equals_brute_force(kind: str) -> None:
    """By batch, by features, by sequence with keys and values gathered, or whole."""
    ir, given = extract_ir(OneAttention().eval(), (torch.randn(2, 4, 8),), strict=False), cluster(kind)
    expected = unbeaten(brute_force(ir, given, {"layer": STYLES}))
    found = [(each.seconds, each.bytes) for each in layouts(ir, "tp", 2, given, {})]
    assert [size for _, size in found] == [size for _, size in expected]
    assert [time for time, _ in found] == pytest.approx([time for time, _ in expected], rel=1e-9)


def test_a_sequence_is_divided_where_heads_cannot_be() -> None:
    """One long sequence, one head: every rank attends with its own queries, and computes the same together."""
    torch.manual_seed(0)
    model, x = OneAttention().eval(), torch.randn(1, 64, 8)
    ir = extract_ir(model, (x,), strict=False)
    plan = find_plan(ir, cluster("balanced", 4)).best
    assert [(axis.ranks, axis.inputs) for axis in plan.axes] == [(4, {"x": "shard(1)"})]
    assert kinds_of(plan.axes[0]) == ["sequence parallel"]
    is_valid, report = verify_sharded(plan.shard(ir), model, model.state_dict(), (x,))
    assert is_valid, str(report)


def test_tokens_are_sent_to_experts_where_that_is_faster() -> None:
    """Too little memory for all experts: with less room in messages, the plan is faster, and computes the same."""
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(8, 16, 8)
    ir, given = extract_ir(model, (x,), strict=False), cluster("slow memory", 4)
    fastest = [layouts(ir, "tp", 4, given, {}, 2000, style)[0] for style in ("all_to_all", "all_to_all(1.5)")]
    assert fastest[1].rows == {"up": "grouped_gemm", "down": "grouped_gemm", "": "all_to_all(1.5)"}
    assert fastest[1].seconds < fastest[0].seconds
    sharded = shard(ir, fastest[1].rows, {"tp": 4}, inputs=fastest[1].inputs, outputs=fastest[1].outputs)
    assert seconds(sharded, given) == pytest.approx(fastest[1].seconds, rel=0.01)
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
    assert is_valid, str(report)
    assert find_plan(ir, given, capacity=1.5).best.axes[0].rows[""] == "all_to_all(1.5)"
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="capacity must be from 1 to 100000, not"):
            find_plan(ir, given, capacity=wrong)


@pytest.mark.parametrize("ranks", [2, 4])
def test_never_slower_than_the_plan_of_transformers(ranks: int) -> None:
    """By the same estimate, and the estimate of the search is that of the sharded graph."""
    model = language_model("llama")
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    for kind in DEVICES:
        given = cluster(kind, ranks)
        theirs = shard(ir, transformers_plan(model, ir, ranks=ranks), {"tp": ranks})
        best = layouts(ir, "tp", ranks, given, {})[0]
        ours = shard(ir, best.rows, {"tp": ranks}, inputs=best.inputs, outputs=best.outputs)
        assert seconds(ours, given) == pytest.approx(best.seconds, rel=0.01)
        assert best.seconds <= seconds(theirs, given) * 1.001


@pytest.mark.parametrize("memory", [1e9, 30e3, 20e3])
def test_a_planned_graph_computes_what_the_model_computes(memory: float) -> None:
    """Capture, plan, shard, split: results of all ranks and stages equal those of the model."""
    torch.manual_seed(0)
    model = Tower()
    ir = extract_ir(model, (IDS,), strict=False)
    plan = find_plan(ir, cluster("balanced", 4, memory)).best
    assert plan.estimate is not None
    assert plan.estimate.memory <= memory
    graph = plan.shard(ir) if plan.axes else ir
    if plan.axes:
        is_valid, report = verify_sharded(graph, model, model.state_dict(), (IDS,))
        assert is_valid, str(report)
    if plan.stages:
        pipeline = plan.split(ir)
        assert len(pipeline.nodes) == len(plan.stages) + 1
        is_valid, report = verify_pipeline(pipeline, model, model.state_dict(), (IDS,))
        assert is_valid, str(report)
        rows = pipeline_report(plan.split(graph)).rows
        assert max(row.memory for row in rows) <= memory


def test_more_memory_is_never_slower() -> None:
    """Less memory needs more division: time grows, and every plan fits."""
    ir = extract_ir(Tower(), (IDS,), strict=False)
    times = []
    for memory in (35e3, 50e3, 1e9):
        best = find_plan(ir, cluster("balanced", 2, memory)).best.estimate
        assert best is not None
        assert best.memory <= memory
        times.append(best.seconds)
    assert times == sorted(times, reverse=True)


def test_the_report_lists_the_next_best_plans() -> None:
    """Best first, each for another mesh or number of stages, as text and as JSON."""
    report = find_plan(extract_ir(Tower(), (IDS,), strict=False), cluster("balanced", 4))
    plans = [report.best, *report.others]
    times = [plan.estimate.seconds for plan in plans if plan.estimate]
    assert times == sorted(times)
    assert len({(*plan.mesh.items(), len(plan.stages)) for plan in plans}) == len(plans) == 4
    assert str(report).splitlines()[0].split("  ")[0] == "plan"
    assert [each["estimate"]["seconds"] for each in report.to_dict()["others"]] == times[1:]


def test_experts_are_divided_with_all_tokens_on_few_devices() -> None:
    """A mixture of experts: the plan is no slower than either plan of transformers, and computes the same."""
    model = language_model("mixtral", num_local_experts=4, num_experts_per_tok=2)
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    given = cluster("slow memory", 2)
    best = layouts(ir, "tp", 2, given, {})[0]
    for expert_parallel in (False, True):
        rows = transformers_plan(model, ir, ranks=2, expert_parallel=expert_parallel)
        assert best.seconds <= seconds(shard(ir, rows, {"tp": 2}), given) * 1.001
    sharded = shard(ir, best.rows, {"tp": 2}, inputs=best.inputs, outputs=best.outputs)
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


def test_an_optimised_graph_is_planned() -> None:
    """Fused operators, also with collectives inside: the plan is measured, and computes the same."""
    torch.manual_seed(0)
    model = Tower(tied=True)
    ir, _ = optimize(extract_ir(model, (IDS,), strict=False), "full")
    link = Link(1e9, 1e-6)
    found = find_plan(ir, Cluster(4, 1e9, Roofline(1e12, 1e8), link, link))
    plan = next(plan for plan in (found.best, *found.others) if any(axis.rows for axis in plan.axes))
    is_valid, report = verify_sharded(plan.shard(ir), model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


def test_a_plan_of_several_axes_and_stages() -> None:
    """Throughput on four devices: data parallel ranks beside ranks that share layers, or stages."""
    torch.manual_seed(0)
    model = Tower()
    ir = extract_ir(model, (IDS,), strict=False)
    report = find_plan(ir, cluster("balanced", 8, 15e3), objective="throughput")
    for plan in (report.best, *report.others):
        is_valid, text = verify_sharded(plan.shard(ir), model, model.state_dict(), (IDS,))
        assert is_valid, str(text)
    assert any(len(plan.axes) > 1 for plan in (report.best, *report.others))


def test_what_is_missing_if_nothing_fits() -> None:
    """The sentence names the memory that the smallest plan needs; with that, a plan is found."""
    ir = extract_ir(Tower(), (IDS,), strict=False)
    with pytest.raises(PlanError, match=r"no plan fits 2 devices of 2.00 kB: the smallest needs .* on each; the wei"):
        find_plan(ir, cluster("balanced", 2, 2000))
    with pytest.raises(PlanError) as refused:
        find_plan(ir, cluster("balanced", 2, 20_000))
    needed = float(str(refused.value).partition("smallest needs ")[2].partition(" kB")[0]) * 1e3
    assert find_plan(ir, cluster("balanced", 2, needed * 1.01)).best.devices == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"devices": 0}, "devices must be from 1 to 65536, not 0"),
        ({"devices": True}, "devices must be a number, not True"),
        ({"memory": 0}, "memory must be from 1 to"),
        ({"per_node": 0}, "per_node must be from 1 to 65536, not 0"),
    ],
)
def test_clusters_that_make_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Cluster(**{"devices": 2, "memory": 1e9, **given})


def test_graphs_that_cannot_be_planned() -> None:
    ir = extract_ir(nn.Linear(4, 4).eval(), (torch.ones(2, 4),), strict=False)
    two = cluster("balanced")
    with pytest.raises(PlanError, match="already sharded"):
        find_plan(shard(ir, {}, {"dp": 2}, inputs={"*": "shard(0)"}), two)
    with pytest.raises(PlanError, match="unknown objective 'speed'; expected one of latency, throughput"):
        find_plan(ir, two, objective="speed")
    with pytest.raises(PlanError, match="expected a Cluster, not 'two GPUs'"):
        find_plan(ir, "two GPUs")  # type: ignore[arg-type]  # refused at run time, too
    with pytest.raises(PlanError, match="unknown entry point 'decode'; the graph has only one"):
        find_plan(ir, two, entry="decode")


def test_rows_of_equal_layers_are_one_row() -> None:
    """Against the definition, on random rows; 20,000 rows take time in proportion."""
    rng = random.Random(0)
    paths = [f"layers.{number}.{name}" for number in range(4) for name in ("q", "k")] + ["head"]
    for _ in range(200):
        rows = {path: rng.choice(["colwise", "rowwise"]) for path in paths if rng.random() < 0.9}
        expected = {}
        for path, row in rows.items():
            name = path.rpartition(".")[2]
            same = all(rows.get(f"layers.{number}.{name}") == row for number in range(4))
            expected[f"layers.*.{name}" if path != "head" and same else path] = row
        assert shortened(rows, paths) == expected
    many = {f"layers.{number}.q": "colwise" for number in range(20_000)}
    with at_most(10):
        assert shortened(many, many) == {"layers.*.q": "colwise"}
