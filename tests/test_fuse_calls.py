"""Fused calls: a body of exactly the replaced nodes, shared if equal, placed after all its operands."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.captured import captured, kinds
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, IRExecutor, cost, extract_ir, ir_to_mermaid, register_executor
from torch_ir.ir import OpNode
from torch_ir.ops.registry import unregister
from torch_ir.passes import optimize
from torch_ir.passes.fuse.fused_calls import Group, fuse_groups
from torch_ir.passes.pass_registry import Pass
from torch_ir.passes.random_check import prove


def fused(name: str, *groups: list[str]) -> Pass:
    """A pass that fuses nodes by their names."""

    def apply(ir: IR) -> int:
        nodes = {node.name: node for node in ir.nodes}
        found = [[nodes[node] for node in group if node in nodes] for group in groups]
        wanted = [Group(name, each) for each in found if len(each) > 1]
        return fuse_groups(ir, wanted)

    return Pass("fuse-by-name", apply)


def two_chains() -> IR:
    return small(
        "x: float32[2, 3]",
        neg="aten.neg.default(x)",
        relu="aten.relu.default(neg)",
        neg_1="aten.neg.default(relu)",
        relu_1="aten.relu.default(neg_1)",
    )


def test_equal_bodies_are_one_function() -> None:
    """Two equal groups are two calls of one body, which consists of the original nodes."""
    after = optimized(two_chains(), [fused("pair", ["neg", "relu"], ["neg_1", "relu_1"])], exact=True)
    assert text(after) == lines("""
        function pair(input: float32[2, 3]) {
          neg: float32[2, 3] = aten.neg.default(self=input)
          relu: float32[2, 3] = aten.relu.default(self=neg)
          return relu
        }

        graph(x: float32[2, 3]) {
          uses @pair
          relu: float32[2, 3] = fused.pair(input=x, function=@pair)
          relu_1: float32[2, 3] = fused.pair(input=relu, function=@pair)
          return relu_1
        }
    """)


def test_a_body_that_is_there_already_is_used_again() -> None:
    """Bodies are shared between calls that different passes fused."""
    steps = [fused("pair", ["neg", "relu"]), fused("pair", ["neg_1", "relu_1"])]
    assert list(optimized(two_chains(), steps, exact=True).functions) == ["pair"]


def test_put_inline_it_is_what_it_was() -> None:
    """The flat graph is the one that was fused, to the letter."""
    ir = two_chains()
    after = optimized(ir, [fused("pair", ["neg", "relu"], ["neg_1", "relu_1"])])
    assert text(after.at_level("aten")) == text(ir)


def test_a_call_comes_after_all_it_reads_and_before_its_readers() -> None:
    """Consumers in the middle of a group move after the call, and its operands stay before it."""
    ir = small(
        "x: float32[2]",
        ["mul", "exp"],
        neg="aten.neg.default(x)",
        exp="aten.exp.default(neg)",
        cos="aten.cos.default(x)",
        mul="aten.mul.Tensor(neg, cos)",
    )
    after = optimized(ir, [fused("product", ["neg", "mul"])], exact=True)
    assert [node.name for node in after.nodes] == ["cos", "mul", "exp"]
    assert [made.name for made in after.nodes[1].outputs] == ["neg", "mul"]


def test_groups_that_need_each_other_are_not_both_fused() -> None:
    """Each of these alone could be a call; as two calls, each would have to precede the other."""
    ir = small(
        "x: float32[2], y: float32[2]",
        ["a2", "b2"],
        a1="aten.neg.default(x)",
        b1="aten.exp.default(y)",
        a2="aten.add.Tensor(a1, b1)",
        b2="aten.add.Tensor(b1, a1)",
    )
    after, report = proved(ir, [fused("pair", ["a1", "a2"], ["b1", "b2"])], exact=True)
    assert sorted(kinds(after)) == ["aten.add.Tensor", "aten.neg.default", "fused.pair"]
    assert [decline.why for decline in report.declined][:1] == ["it would depend on its own results"]


def test_a_group_that_is_left_and_entered_again_is_not_fused() -> None:
    """The call would depend on its own result."""
    ir = small(
        "x: float32[4, 4]",
        neg="aten.neg.default(x)",
        mm="aten.mm.default(neg, x)",
        add="aten.add.Tensor(neg, mm)",
    )
    after, report = proved(ir, [fused("sum", ["neg", "add"])])
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == ["it would depend on its own results"]


def test_effects_keep_their_order() -> None:
    """Random numbers are drawn in the order in which they were."""
    ir = small(
        "x: float32[4]",
        ["mul", "rand_1"],
        neg="aten.neg.default(x)",
        rand="aten.rand_like.default(neg)",
        rand_1="aten.rand_like.default(x)",
        exp="aten.exp.default(rand)",
        mul="aten.mul.Tensor(neg, x)",
    )
    after = optimized(ir, [fused("product", ["neg", "mul"])], exact=True)
    assert [node.name for node in after.nodes][:3] == ["mul", "rand", "rand_1"]


def test_a_fused_call_moves_what_it_reads_and_gives() -> None:
    """Its bytes are those at its border, its FLOPs those of its body."""
    ir = small("x: float32[8, 8]", mm="aten.mm.default(x, x)", relu="aten.relu.default(mm)")
    after = optimized(ir, [fused("mm_relu", ["mm", "relu"])])
    assert (cost(after).flops, cost(after).bytes) == (cost(ir).flops, 2 * 8 * 8 * 4)
    assert cost(ir).bytes == 4 * 8 * 8 * 4
    assert {name: work.bytes for name, work in cost(after).by_op().items()} == {"fused.mm_relu": 512}


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x + torch.nn.functional.gelu(self.linear(normal))


def blocks() -> IR:
    with torch.device("meta"):
        return extract_ir(torch.nn.Sequential(Block(), Block(), Block()).eval(), (torch.zeros(2, 8),))


def test_a_fused_graph_is_a_graph_like_any_other(tmp_path: Path) -> None:
    """It is saved and read, drawn, and run like the graph that it was."""
    ir = blocks()
    after, _ = optimize(ir, "full", verify=True)
    assert list(after.functions) == ["rms_norm", "linear_gelu"]
    for name in ("fused.json", "fused.pb"):
        after.save(tmp_path / name)
        assert text(IR.load(tmp_path / name)) == text(after)
    assert "rms_norm" in ir_to_mermaid(after)
    assert prove(ir, IR.load(tmp_path / "fused.json")).is_valid


def test_open_sizes_are_spoken_of_inside() -> None:
    """A body uses the sizes of the outer graph."""
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.device("meta"):
        model = torch.nn.Sequential(Block(), Block()).eval()
        ir = extract_ir(model, (torch.zeros(4, 8),), dynamic_shapes=({0: batch},))
    after, report = optimize(ir, "full", verify=True)
    assert report.proof is not None
    assert report.proof.is_valid
    assert after.functions["rms_norm"].graph_inputs[0].shape == after.graph_inputs[0].shape
    assert not after.graph_inputs[0].is_static


def test_bodies_of_blocks_are_fused_too() -> None:
    """A block that is a function gets nested functions; those are not fused again."""
    after, report = optimize(blocks().fold_blocks(), "full", verify=True)
    assert report.proof is not None
    assert report.proof.is_valid
    assert kinds(after.functions["Block"]) == ["fused.rms_norm", "fused.linear_gelu", "aten.add.Tensor"]
    assert kinds(after.functions["Block"].functions["linear_gelu"]) == ["aten.linear.default", "aten.gelu.default"]


def test_what_runs_once_is_never_fused() -> None:
    """A chain over weights is computed when they are bound; inside a call it would run every time."""
    ir = small(
        "x: float32[2]",
        weights="w: float32[2]",
        neg="aten.neg.default(w)",
        exp="aten.exp.default(neg)",
        mul="aten.mul.Tensor(x, exp)",
        relu="aten.relu.default(mul)",
    )
    after = optimized(ir, ["fuse-elementwise"], exact=True)
    assert kinds(after) == ["aten.neg.default", "aten.exp.default", "fused.elementwise"]


@pytest.mark.parametrize("count", [40, 400])
def test_many_groups_are_fused_in_one_sweep(count: int) -> None:
    """As many calls as there are groups, over one body."""
    calls: dict[str, str] = {}
    before = "x"
    for index in range(count):
        calls[f"neg{index}"] = f"aten.neg.default({before})"
        calls[f"relu{index}"] = f"aten.relu.default(neg{index})"
        calls[f"sort{index}"] = f"aten.cumsum.default(relu{index}, dim=0)"
        before = f"sort{index}"
    after, _ = optimize(small("x: float32[2]", **calls), passes=["fuse-elementwise"])
    found: list[OpNode] = [node for node in after.nodes if node.op_type == "fused.elementwise"]
    assert (len(found), list(after.functions)) == (count, ["elementwise"])


def test_an_executor_of_your_own_runs_a_fused_operator() -> None:
    """Else the executor runs the nodes of its body, as if they were not fused."""
    ir = optimize(captured(lambda x, w, b: F.linear(x, w, b).relu(), (2, 3), (4, 3), (4,)), "full")[0]
    x, w, b = torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)
    wanted = F.linear(x, w, b).relu()
    torch.testing.assert_close(IRExecutor(ir, {})(x, w, b), wanted)
    seen = []

    @register_executor("fused.linear_relu")
    def linear_relu(inputs: list[torch.Tensor], attrs: dict[str, object]) -> torch.Tensor:
        seen.append(len(inputs))
        return F.linear(*inputs).relu()

    try:
        torch.testing.assert_close(IRExecutor(ir, {})(x, w, b), wanted)
    finally:
        unregister("fused.linear_relu")
    assert seen == [3]
