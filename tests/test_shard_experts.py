"""Tokens are sent to the ranks of their experts and back: the style `all_to_all`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.sharded_models import MORE, Experts, collectives, language_model
from torch_ir import IR, GraphError, ShardError, cost, extract_ir, load_ir, optimize, shard, verify_sharded
from torch_ir.analysis import Link
from torch_ir.analysis.cost_model.links import Network

IDS = torch.arange(32).reshape(4, 8) * 7 % 32


def plan(style: str, path: str = "model.layers.*.mlp.experts") -> dict[str, Any]:
    return {f"{path}.gate_up_proj": "grouped_gemm", f"{path}.down_proj": "grouped_gemm", path: style}


def experts() -> tuple[nn.Module, IR, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(4, 4, 8)
    return model, extract_ir(model, (x,), strict=False), x


SMALL = {"up": "grouped_gemm", "down": "grouped_gemm"}


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_results_are_those_of_the_model(kind: str) -> None:
    """From whole tokens, a part of the batch, and a part of each sequence; layers are functions."""
    model = language_model(kind, **MORE[kind])
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    for ranks, place in ((2, "replicate"), (4, "shard(0)"), (2, "shard(1)")):
        sharded = shard(ir, plan("all_to_all"), {"tp": ranks}, inputs={"*": place})
        assert collectives(sharded)["all_to_all_single"] == {"mixtral": 6, "deepseek_v3": 3, "gpt_oss": 12}[kind]
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
        assert is_valid, str(report)


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_tokens_may_choose_the_same_experts(ranks: int) -> None:
    """Every routing has room by default; with less room the run fails, and drops no token."""
    model, ir, _ = experts()
    x = torch.randn(4, 4, 8)
    x[..., :2] += 100  # the first two of four experts
    for style in ("all_to_all", "all_to_all(100)"):
        sharded = shard(ir, {**SMALL, "": style}, {"tp": ranks})
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
        assert is_valid, str(report)
    tight = shard(ir, {**SMALL, "": "all_to_all(1)"}, {"tp": ranks})
    is_valid, report = verify_sharded(tight, model, model.state_dict(), (x,))
    assert not is_valid
    rows = {2: 8, 4: 2}[ranks]
    assert f"more than {rows} rows of a rank go to another one; raise the capacity of all_to_all" in str(report)


def test_messages_have_room_for_what_the_style_says() -> None:
    """Sixteen tokens with two choices on two ranks: 16 rows for each, at most 16 to one, 8 on average."""
    _, ir, _ = experts()
    for style, rows in {"all_to_all": 16, "all_to_all(1.25)": 10, "all_to_all(1)": 8, "all_to_all(9)": 16}.items():
        sent = next(
            node
            for node in shard(ir, {**SMALL, "": style}, {"tp": 2}).nodes
            if "all_to_all" in node.op_type and len(node.inputs[0].shape) == 2 and node.inputs[0].dtype == "float32"
        )
        assert sent.attrs["input_split_sizes"] == [rows, rows]


def test_weights_that_every_rank_has_need_no_message() -> None:
    model, ir, x = experts()
    sharded = shard(ir, {"": "all_to_all"}, {"tp": 2}, inputs={"*": "shard(0)"})
    assert collectives(sharded) == {"all_gather_into_tensor": 1}
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
    assert is_valid, str(report)


def test_shard_save_load_optimise(tmp_path: Any) -> None:
    """The graph survives its file, and a level that fuses operators."""
    model, ir, x = experts()
    shard(ir, {**SMALL, "": "all_to_all(1.75)"}, {"tp": 2}).save(tmp_path / "rank.json")
    better, _ = optimize(load_ir(tmp_path / "rank.json"), "full")
    is_valid, report = verify_sharded(better, model, model.state_dict(), (x,))
    assert is_valid, str(report)
    x[..., :2] += 100  # the first two of four experts: more rows than there is room for
    _, report = verify_sharded(better, model, model.state_dict(), (x,))
    assert "rows of a rank go to another one" in str(report)


def test_a_second_axis() -> None:
    """The batch is divided first, then tokens are sent along the second axis."""
    model, ir, x = experts()
    data = shard(ir, {}, {"dp": 2}, inputs={"*": "shard(0)"}, outputs={"*": "shard(0)"})
    sharded = shard(data, {**SMALL, "": "all_to_all"}, {"tp": 2})
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
    assert is_valid, str(report)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"": "all_to_all(0.5)"}, "the capacity of all_to_all must be at least 1, not 0.5"),
        ({"": "all_to_all(x)"}, r"unknown style 'all_to_all\(x\)'; did you mean 'all_to_all'"),
        (
            {"": "all_to_all", "up": "colwise"},
            "_grouped_mm.* sorted by expert on each rank, which the style",
        ),
    ],
)
def test_what_cannot_be_done(rows: dict[str, str], message: str) -> None:
    _, ir, _ = experts()
    with pytest.raises(ShardError, match=message):
        shard(ir, rows, {"tp": 2})


class Summed(Experts):
    """The positions of rows are numbers in the result."""

    def made(self, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return super().made(rows, ends) + rows.sum(0)


class OtherTokens(Experts):
    """Rows of other tokens than those that chose the experts."""

    def order(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        experts, order, weights = super().order(x)
        return experts, order // 2, weights


class TwoOrders(Experts):
    """Weights in another order than the rows."""

    def order(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        experts, order, weights = super().order(x)
        return experts, order, weights[torch.sort(order % 3)[1]]


@pytest.mark.parametrize("kind", [Summed, OtherTokens, TwoOrders])
def test_what_depends_on_the_order_of_all_rows_is_refused(kind: type[Experts]) -> None:
    """Each rank sorts its own rows, so that such a result would be another one."""
    ir = extract_ir(kind(), (torch.randn(4, 4, 8),), strict=False)
    with pytest.raises(ShardError, match="sorted by expert on each rank"):
        shard(ir, {**SMALL, "": "all_to_all"}, {"tp": 2})


def test_a_file_sends_one_piece_to_each_rank() -> None:
    _, ir, _ = experts()
    sharded = shard(ir, {**SMALL, "": "all_to_all"}, {"tp": 2})
    node = next(node for node in sharded.nodes if "all_to_all" in node.op_type)
    for sizes in ([1, 1, 1], [1 << 62, 1 << 62], [0, 2 * node.attrs["input_split_sizes"][0]], "x"):
        node.attrs["input_split_sizes"] = sizes
        with pytest.raises(GraphError, match=r"input_split_sizes .*; expected 2 equal parts of dimension 0"):
            sharded.check()


def test_a_rank_sends_all_but_its_own_piece() -> None:
    """Two messages of 16 rows of 8 floats there and 8 back, and the sums of two experts as int32, to one other rank."""
    _, ir, _ = experts()
    costs = cost(shard(ir, {**SMALL, "": "all_to_all"}, {"tp": 2})).by_op()
    assert costs["_c10d_functional.all_to_all_single.default"].communication == 16 * 8 * 4 * 2 + 2 * 4


def test_experts_multiply_the_rows_they_expect() -> None:
    """Of 32 slots, half the 32 rows of all ranks are expected: what one rank multiplies if it gets all tokens."""
    _, ir, _ = experts()
    for style in ("all_to_all", "all_to_all(1)", "ep_dispatch_experts"):
        costs = cost(shard(ir, {**SMALL, "": style}, {"tp": 2})).by_op()
        assert costs["aten._grouped_mm.default"].flops == 2 * 16 * (8 * 16 + 8 * 8)


def test_messages_go_directly() -> None:
    """Four ranks on two nodes: two messages between nodes at once, then one within the node."""
    network = Network(Link(10.0, 1.0), Link(5.0, 2.0), per_node=2)
    assert network.direct(4, 1, 100.0) == (2.0 + 200 / 5) + (1.0 + 100 / 10)
    assert network.direct(2, 1, 100.0) == 1.0 + 100 / 10
