"""Context parallelism: attention over a divided sequence, with keys and values gathered or sent block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.sharded_models import MORE, Tower, collectives, language_model
from torch_ir import GraphError, cost, extract_ir, liveness, load_ir, optimize, shard, verify_sharded
from torch_ir.analysis import Link
from torch_ir.analysis.cost_model.links import Network

IDS = torch.arange(32).reshape(4, 8) * 7 % 32
SEQUENCE = {"inputs": {"*": "shard(1)"}, "outputs": {"*": "shard(1)"}}


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.eval()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, *mask, **self.options)


@pytest.mark.parametrize("style", ["gathered", "ring"])
@pytest.mark.parametrize("kind", ["tower", "llama", "mixtral"])
def test_language_models_over_parts_of_a_sequence(kind: str, style: str) -> None:
    """Causal attention, shared heads of keys, and an explicit mask: only keys and values are sent."""
    torch.manual_seed(0)
    model = Tower() if kind == "tower" else language_model(kind, **MORE.get(kind, {}))
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    plan = {"blocks.*" if kind == "tower" else "model.layers.*.self_attn": "ring"} if style == "ring" else {}
    for ranks in (2, 4):
        sharded = shard(ir, plan, {"cp": ranks}, **SEQUENCE)
        if kind != "mixtral":  # whose experts get all tokens
            sent = {"broadcast": 2 * ranks} if style == "ring" else {"all_gather_into_tensor": 4}
            assert collectives(sharded) == sent
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
        assert is_valid, str(report)


def hidden(*shape: int) -> torch.Tensor:
    """A mask in which the third query sees no key, and the last one only the last key."""
    mask = torch.rand(shape) > 0.3
    if shape[-2] > 1:
        mask[..., 2, :] = False
        mask[..., -1, :-1] = False
        mask[..., -1, -1] = True
    return mask


CASES: dict[str, tuple[dict[str, Any], int, Callable[[], torch.Tensor] | None]] = {
    "all keys": ({}, 4, None),
    "causal": ({"is_causal": True}, 4, None),
    "causal, shared heads": ({"is_causal": True, "enable_gqa": True}, 2, None),
    "a scale": ({"scale": 0.1}, 4, None),
    "a scale of zero": ({"scale": 0.0}, 4, None),
    "bool mask": ({}, 4, lambda: hidden(2, 1, 8, 12)),
    "bool mask of keys": ({}, 4, lambda: hidden(2, 1, 1, 12)),
    "float mask": ({}, 4, lambda: torch.randn(8, 12)),
    "infinite mask": ({}, 4, lambda: torch.zeros(8, 12).masked_fill(~hidden(8, 12), -torch.inf)),
}


@pytest.mark.parametrize("style", [{}, {"": "ring"}])
@pytest.mark.parametrize("case", CASES)
def test_attention_is_that_of_torch(case: str, style: dict[str, str]) -> None:
    """8 queries and 12 keys on 2 and 4 ranks, with large scores; rows without any key are zero."""
    options, heads, mask = CASES[case]
    torch.manual_seed(0)
    values = [torch.randn(2, 4, 8, 6) * 20, torch.randn(2, heads, 12, 6), torch.randn(2, heads, 12, 10)]
    values += [mask()] if mask else []
    model = Attention(**options)
    ir = extract_ir(model, tuple(values), strict=False)
    names = [tensor.name for tensor in ir.graph_inputs]
    for ranks in (2, 4):
        inputs = dict.fromkeys(names[:3], "shard(2)")
        sharded = shard(ir, style, {"cp": ranks}, inputs=inputs, outputs={"*": "shard(2)"})
        assert collectives(sharded) == ({"broadcast": ranks} if style else {"all_gather_into_tensor": 2})
        is_valid, report = verify_sharded(sharded, model, {}, values)
        assert is_valid, str(report)


def test_blocks_of_half_precision_are_merged_in_float32() -> None:
    """The result is as close to that in float64 as torch's own kernel is."""
    torch.manual_seed(0)
    values = [torch.randn(1, 2, 8, 4).bfloat16() for _ in range(3)]
    ir = extract_ir(Attention(is_causal=True), tuple(values), strict=False)
    sharded = shard(ir, {"": "ring"}, {"cp": 4}, inputs={"*": "shard(2)"})
    is_valid, report = verify_sharded(sharded, Attention(is_causal=True), {}, values)
    assert is_valid, str(report)
    assert {tensor.dtype for node in sharded.nodes for tensor in node.outputs if "exp" in node.name} == {"float32"}


def test_a_ring_keeps_three_blocks_of_keys_and_values() -> None:
    """Its own as it is sent, the one that is computed, and the next one; gathering keeps those of all 8 ranks."""
    values = [torch.randn(1, 1, size, 64) for size in (8, 1024, 1024)]
    ir = extract_ir(Attention(), tuple(values), strict=False)
    peaks = {}
    for name, style in {"gathered": {}, "ring": {"": "ring"}}.items():
        sharded = shard(ir, style, {"cp": 8}, inputs={"*": "shard(2)"}, outputs={"*": "shard(2)"})
        peaks[name] = int(liveness(sharded).peak)
    block = 2 * 1024 // 8 * 64 * 4
    assert peaks["ring"] < 3.1 * block
    assert peaks["gathered"] >= 8 * block


def test_shard_save_load_optimise(tmp_path: Any) -> None:
    """The graph survives its file, and a level that fuses operators."""
    torch.manual_seed(0)
    model = Tower()
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    shard(ir, {"blocks.*": "ring"}, {"cp": 2}, **SEQUENCE).save(tmp_path / "rank.json")
    better, _ = optimize(load_ir(tmp_path / "rank.json"), "full")
    is_valid, report = verify_sharded(better, model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


def test_heads_along_a_second_axis() -> None:
    """The sequence along one axis, heads along the other."""
    torch.manual_seed(0)
    values = [torch.randn(2, 4, 8, 4) for _ in range(3)]
    ir = extract_ir(Attention(is_causal=True), tuple(values), strict=False)
    for style in ({}, {"": "ring"}):
        heads = shard(ir, {}, {"tp": 2}, inputs={"*": "shard(1)"}, outputs={"*": "shard(1)"})
        both = shard(heads, style, {"cp": 2}, inputs={"*": "shard(2)"}, outputs={"*": "shard(2)"})
        is_valid, report = verify_sharded(both, Attention(is_causal=True), {}, values)
        assert is_valid, str(report)


def test_what_a_broadcast_costs() -> None:
    """Each of two ranks sends its 4 keys and values of 2 heads, 4 * 2 * 8 floats: half of two messages on average."""
    values = [torch.randn(1, 2, 8, 4) for _ in range(3)]
    sharded = shard(
        extract_ir(Attention(), tuple(values), strict=False), {"": "ring"}, {"cp": 2}, inputs={"*": "shard(2)"}
    )
    assert cost(sharded).by_op()["_c10d_functional.broadcast.default"].communication == 4 * 2 * 8 * 4
    network = Network(Link(10.0, 1.0), Link(5.0, 2.0), per_node=2)
    assert network.chain(4, 1, 100.0) == 2 * 1.0 + 1 * 2.0 + 100 / 5
    assert network.chain(2, 1, 100.0) == 1.0 + 100 / 10


def test_a_file_names_a_rank_of_the_axis() -> None:
    values = [torch.randn(1, 2, 8, 4) for _ in range(3)]
    sharded = shard(
        extract_ir(Attention(), tuple(values), strict=False), {"": "ring"}, {"cp": 2}, inputs={"*": "shard(2)"}
    )
    next(node for node in sharded.nodes if "broadcast" in node.op_type).attrs["src"] = 2
    with pytest.raises(GraphError, match="has src 2, but axis 'cp' has 2 ranks"):
        sharded.check()
