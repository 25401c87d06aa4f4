"""Plans with context parallelism: keys and values of a divided sequence are gathered, or sent in a ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.test_plan import STYLES, OneAttention, brute_force, seconds, unbeaten
from torch_ir import IR, Cluster, cost, extract_ir, find_plan, liveness, load_plan, optimize, shard, verify_sharded
from torch_ir.analysis import Link, Roofline
from torch_ir.analysis.cost_model.times import Clock
from torch_ir.planning.layouts import layouts
from torch_ir.planning.plan_report import kinds_of

LINKS = {"the links hide behind attention": 5e8, "the links are too slow to hide": 1e8}


def compute_bound(bandwidth: float, memory: float = 1e9, devices: int = 4) -> Cluster:
    link = Link(bandwidth, 1e-9)
    return Cluster(devices, memory, Roofline(1e9, 1e12), link, link)


def one_sequence(length: int = 64) -> tuple[nn.Module, torch.Tensor, IR]:
    torch.manual_seed(0)
    model, x = OneAttention().eval(), torch.randn(1, length, 8)
    return model, x, extract_ir(model, (x,), strict=False)


@pytest.mark.parametrize("case", LINKS)
def test_both_forms_equal_brute_force(case: str) -> None:
    """One sequence on four ranks: a ring is chosen exactly where it is faster."""
    _, _, ir = one_sequence()
    given = compute_bound(LINKS[case])
    expected = unbeaten(brute_force(ir, given, {"layer": STYLES, "": [None, "ring"]}))
    found = layouts(ir, "tp", 4, given, {})
    assert [each.bytes for each in found] == [size for _, size in expected]
    assert [each.seconds for each in found] == pytest.approx([time for time, _ in expected], rel=1e-9)
    assert (found[0].rows == {"": "ring"}) is (LINKS[case] > 1e8)


def test_from_plan_to_run(tmp_path: Path) -> None:
    """Plan, save, load, shard, optimise, check and run: the ranks compute what the model computes."""
    model, x, ir = one_sequence()
    given = compute_bound(5e8)
    best = find_plan(ir, given).best
    best.save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert [(axis.rows, axis.inputs) for axis in plan.axes] == [({"": "ring"}, {"x": "shard(1)"})]
    assert kinds_of(plan.axes[0]) == ["context parallel"]
    better, _ = optimize(plan.shard(ir), "full")
    better.check()
    is_valid, report = verify_sharded(better, model, model.state_dict(), (x,))
    assert is_valid, str(report)


class Reader(nn.Module):
    """Few queries that attend to a long context."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        keys, values = (layer(context).unsqueeze(1) for layer in (self.key, self.value))
        return F.scaled_dot_product_attention(x.unsqueeze(1), keys, values).squeeze(1)


@pytest.mark.parametrize("memory", [50_000, 20_000])
def test_a_ring_where_gathered_keys_do_not_fit(memory: int) -> None:
    """The fastest of all combinations that fit, with activations, is found; with too little room it is a ring."""
    torch.manual_seed(0)
    model, values = Reader().eval(), (torch.randn(1, 8, 16), torch.randn(1, 256, 16))
    ir = extract_ir(model, values, strict=False)
    link = Link(1e9, 1e-7)
    given = Cluster(8, memory, Roofline(1e9, 1e9), link, link)
    plan = find_plan(ir, given).best
    assert [axis.rows for axis in plan.axes] == [{"": "ring"} if memory < 40_000 else {}]
    fitting = []
    for ring in ({}, {"": "ring"}):
        for place in ({}, {"*": "shard(1)"}, {"x": "shard(1)"}, {"context": "shard(1)"}):
            sharded = shard(ir, ring, {"tp": 8}, inputs=place)
            held = liveness(sharded)
            if held.weights + held.inputs + held.once + held.peak <= memory:
                fitting.append(seconds(sharded, given))
    assert plan.estimate is not None
    assert plan.estimate.seconds == pytest.approx(min(fitting), rel=1e-6)
    is_valid, report = verify_sharded(plan.shard(ir), model, model.state_dict(), values)
    assert is_valid, str(report)


def test_a_collective_overlaps_with_what_runs_before_its_wait() -> None:
    """Four blocks: the first message is waited for, each other one is sent while the block before is computed."""
    _, _, ir = one_sequence()
    ring = shard(ir, {"": "ring"}, {"tp": 4}, inputs={"*": "shard(1)"}, outputs={"*": "shard(1)"})
    given, costs = compute_bound(5e8), cost(ring).per_run
    alone = Clock(given.device, given.network, ring.mesh)
    times = [(row.node, alone.node(row, {}).seconds) for row in costs.nodes]
    sent = [time for node, time in times if "broadcast" in node.op_type]
    expected = sum(time for _, time in times) - sum(sent[1:])
    assert len(sent) == 4
    assert alone.graph(costs).seconds == pytest.approx(expected, rel=1e-9)
    slow = compute_bound(1e6)
    clock = Clock(slow.device, slow.network, ring.mesh)
    most = sum(clock.node(row, {}).seconds for row in costs.nodes if "broadcast" in row.node.op_type)
    assert most < clock.graph(costs).seconds < most * 1.1  # messages are sent one at a time


def test_what_is_missing_counts_rings() -> None:
    """The memory that the smallest plan needs is enough, also if that plan has a ring."""
    torch.manual_seed(0)
    ir = extract_ir(Reader().eval(), (torch.randn(1, 8, 16), torch.randn(1, 256, 16)), strict=False)
    link: Any = Link(1e9, 1e-7)
    with pytest.raises(Exception, match="the smallest needs") as refused:
        find_plan(ir, Cluster(8, 9000, Roofline(1e9, 1e9), link, link))
    needed = float(str(refused.value).partition("smallest needs ")[2].partition(" kB")[0]) * 1e3
    best = find_plan(ir, Cluster(8, needed * 1.01, Roofline(1e9, 1e9), link, link)).best
    assert {axis.rows.get("") for axis in best.axes} == {"ring"}
