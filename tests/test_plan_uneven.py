"""Plans with rows and heads in padded pieces, stages of different lengths, and scattered sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.sharded_models import Block
from tests.test_plan import DEVICES, STYLES, brute_force, cluster, unbeaten
from torch_ir import IR, Cluster, extract_ir, find_plan, load_plan, optimize, shard, verify_sharded
from torch_ir.analysis import Link, Roofline
from torch_ir.analysis.cost_model.links import Network
from torch_ir.planning.layouts import layouts
from torch_ir.planning.stage_choice import Unit, stages_of


def check_brute_force(ir: IR, given: Cluster, options: dict[str, list[Any]]) -> list[tuple[float, float]]:
    """Compare the trade-offs of time and memory with those of all combinations."""
    expected = unbeaten(brute_force(ir, given, options))
    found = [(each.seconds, each.bytes) for each in layouts(ir, "tp", given.devices, given, {})]
    assert [size for _, size in found] == [size for _, size in expected]
    assert [time for time, _ in found] == pytest.approx([time for time, _ in expected], rel=1e-9)
    return found


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "balanced")) for kind in DEVICES]
)
def test_an_odd_inner_size_equals_brute_force(kind: str) -> None:
    """Seven numbers between two layers on two ranks: divided and priced with the padding."""
    model = nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 8)).eval()
    ir = extract_ir(model, (torch.randn(2, 4, 8),), strict=False)
    found = check_brute_force(ir, cluster(kind), {"0": STYLES, "2": STYLES})
    assert min(size for _, size in found) < 4 * (7 * 8 + 7 + 7 * 8 + 8)


@pytest.mark.parametrize("kind", DEVICES)
def test_a_result_that_is_a_pending_sum_is_scattered(kind: str) -> None:
    """As by brute force, and with half of the bytes that the whole result needs."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8)).eval(), torch.randn(4, 4, 8)
    ir = extract_ir(model, (x,), strict=False)
    check_brute_force(ir, cluster(kind), {"0": STYLES})
    summed = [each for each in layouts(ir, "tp", 2, cluster(kind), {}) if "0" in each.rows]
    for each in summed:
        assert list(each.outputs.values()) in (["shard(0)"], [])
        sharded = shard(ir, each.rows, {"tp": 2}, inputs=each.inputs, outputs=each.outputs)
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
        assert is_valid, str(report)


def test_heads_from_plan_to_run(tmp_path: Path) -> None:
    """Seven heads on 4 ranks: plan, save, load, shard, optimise, check and run in lockstep, against eager."""
    torch.manual_seed(0)
    model, x = Block(56, 7).eval().requires_grad_(False), torch.randn(1, 7, 56)
    ir = extract_ir(model, (x,), strict=False)
    link = Link(1e12, 1e-9)
    find_plan(ir, Cluster(4, 90e3, Roofline(1e9, 1e9), link, link)).best.save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert plan.estimate is not None
    assert plan.estimate.memory <= 90e3
    sharded = plan.shard(ir)
    padded = {str(param.key) for param in sharded.params if "padded" in str(param.placement)}
    assert {"query.weight", "out.weight"} <= padded
    better, _ = optimize(sharded, "full")
    better.check()
    is_valid, report = verify_sharded(better, model, model.state_dict(), (x,))
    assert is_valid, str(report)


def test_stages_of_different_lengths() -> None:
    """Three equal layers on two devices that have room for two of them each, or three for one and a half."""
    units = [Unit(name, 1.0, 1.0) for name in "abc"]
    network = Network(Link(1e9, 1e-6), Link(1e9, 1e-6), 8)
    cut = stages_of(units, 2, 2.0, network, 1, 0.0)
    assert cut is not None
    assert sorted(cut.bytes) == [1.0, 2.0]
    assert stages_of(units, 2, 1.5, network, 1, 0.0) is None
