"""Targets with handlers for whole modules and torch functions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.graphs import everything
from tests.lowering import accepting, assert_joined, capture, graph_of, kinds
from torch_ir import IR, Declined, IRExecutor, OpNode, Target, extract_ir, op, render
from torch_ir.ir.regroup.granularity import at_level, fold


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = Gate(), Gate()

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.last(self.shared(self.shared(x))), 1)


@pytest.fixture(scope="module")
def gates() -> IR:
    return capture(Gates(), torch.ones(2, 3, 4))


both_levels = pytest.mark.parametrize("level", ["aten", "module"])


@both_levels
def test_a_module_class_takes_whole_calls(gates: IR, level: str) -> None:
    """Each call is one layer, a module that is called twice is two, and `body` is the graph inside."""
    npu = accepting("aten.flatten")

    @npu.lowers(Gate)
    def gate(node: OpNode, body: IR) -> Any:
        return [step.op_type for step in body.nodes], node["up_weight"].key

    lowered = npu.lower(at_level(gates, level))
    assert lowered.is_complete
    assert [layer.name for layer in lowered] == ["shared", "shared_1", "last", "flatten"]
    assert [layer.value[1] for layer in lowered.layers[:3]] == [
        "shared.up.weight",
        "shared.up.weight",
        "last.up.weight",
    ]
    assert lowered.layers[2].weights["down_bias"] == "last.down.bias"
    inside = ["aten.linear.default", "aten.gelu.default", "aten.linear.default", "aten.add.Tensor"]
    assert lowered.layers[0].value[0] == inside


@both_levels
def test_the_outermost_module_comes_first_and_finer_ones_when_it_declines(gates: IR, level: str) -> None:
    npu = accepting("aten.flatten", "aten.add", "aten.gelu", nn.Linear)

    @npu.lowers(Gate)
    def gate(node: OpNode) -> Any:
        return "gate" if node.origin.module == "shared" else Declined("not the last")

    lowered = npu.lower(at_level(gates, level))
    assert lowered.is_complete
    own = f"{Gate.__module__}.Gate"
    finer = ["torch.nn.Linear", "aten.gelu.default", "torch.nn.Linear", "aten.add.Tensor", "aten.flatten.using_ints"]
    assert kinds(lowered) == [own, own, *finer]


def test_a_module_gives_only_what_it_returns() -> None:
    """A cast to the same dtype returns its input; its consumers do not make that an output of the layer."""
    lowered = accepting("catalogue.llama.RMSNorm").lower(graph_of("llama"))
    norms = [layer for layer in lowered if layer.kind == "catalogue.llama.RMSNorm"]
    assert norms
    assert all(len(layer.outputs) == 1 for layer in norms)
    assert_joined(lowered)


def test_the_reason_of_a_module_stays_with_its_nodes(gates: IR) -> None:
    npu = accepting("aten.linear", "aten.add", "aten.flatten")

    @npu.lowers(Gate)
    def gate(node: OpNode) -> Any:
        return Declined("too wide")

    (row,) = npu.lower(gates).missing
    assert str(row) == "aten.gelu.default  2x3x8 -> 2x3x8 x3  (no lowering; gate: too wide)"


@both_levels
def test_a_pattern_comes_before_a_module(gates: IR, level: str) -> None:
    """A module that lost nodes to a pattern is no longer whole, and its handler is not called."""
    npu = accepting("aten.linear", "aten.add", "aten.flatten", Gate)

    @npu.lowers(op("aten.gelu.default", self=op("aten.linear.default")))
    def linear_gelu(node: OpNode) -> str:
        return "fused"

    lowered = npu.lower(at_level(gates, level))
    assert kinds(lowered)[:3] == ["npu.linear_gelu", "aten.linear.default", "aten.add.Tensor"]
    assert lowered.is_complete


@pytest.mark.parametrize("function", [torch.flatten, "torch.flatten", torch.Tensor.flatten])
def test_a_torch_function_takes_the_operator_of_its_name(gates: IR, function: Any) -> None:
    npu = accepting("aten.flatten")
    npu.lowers(function)(lambda node: node["start_dim"])
    npu.lowers(F.gelu)(lambda node: "gelu")
    values = [layer.value for layer in npu.lower(gates) if not layer.is_placeholder]
    assert values == ["gelu"] * 3 + [1]


class Pairs(nn.Module):
    """Calls a torch function that is several operators."""

    def forward(self, x: Tensor) -> Tensor:
        return F.cosine_similarity(x, F.normalize(x, dim=1)).neg()


@pytest.mark.parametrize("level", ["aten", "function", "module"])
def test_a_recorded_function_of_several_operators_is_one_layer(level: str) -> None:
    """A recorded graph has the torch function of each node, at any level; otherwise its operators are tried."""
    ir = extract_ir(Pairs().eval(), (torch.empty(2, 3, device="meta"),), capture="record").at_level(level)
    npu = accepting(F.normalize, "aten.cosine_similarity", "aten.neg")
    lowered = npu.lower(ir)
    assert kinds(lowered) == ["torch.nn.functional.normalize", "aten.cosine_similarity.default", "aten.neg.default"]
    declining = accepting("aten.neg")
    declining.lowers(F.normalize)(lambda node: Declined("no"))
    assert "lambda: no" in declining.lower(ir).missing[0].reasons


def test_a_recorded_function_is_taken_by_its_name_or_looked_into(gates: IR) -> None:
    ir = gates.clone()
    fold(ir, [ir.node("flatten")], "flat", "torch.flatten")
    assert accepting("torch.flatten").lower(ir).layers[-1].kind == "torch.flatten"
    assert accepting("aten.flatten").lower(ir).layers[-1].kind == "aten.flatten.using_ints"


def test_a_call_without_handler_is_looked_into() -> None:
    """Repeated blocks, fused operators and recorded functions count as the nodes inside them."""
    ir = everything()
    lowered = accepting("aten.neg", "aten.relu").lower(ir)
    assert kinds(lowered) == ["aten.mm.default", "aten.max.dim", "aten.add.Tensor", "aten.neg.default",
                              "aten.relu.default", "aten.cat.default"]  # fmt: skip
    assert kinds(accepting("call").lower(ir))[3] == "call"
    declining = Target("npu")
    declining.lowers("call")(lambda node: None)
    assert kinds(declining.lower(ir))[3:5] == ["aten.neg.default", "aten.relu.default"]


def test_the_lowered_graph_computes_the_same(gates: IR) -> None:
    """Every folded module is a call of its nodes, so the graph of the layers runs."""
    torch.manual_seed(0)
    model = Gates().eval()
    npu = accepting(Gate)
    npu.lowers(op("aten.flatten.using_ints", self="x"))(lambda node: "flat")
    lowered = npu.lower(gates)
    x = torch.randn(2, 3, 4)
    out = IRExecutor(lowered.ir, model.state_dict())(x)
    torch.testing.assert_close(out, model(x))


def test_placeholders_are_red_in_the_picture(gates: IR, tmp_path: Path) -> None:
    lowered = accepting(Gate).lower(gates)
    render(lowered.ir, tmp_path / "gates.mmd", placeholders=lowered.placeholders)
    styled = [line for line in (tmp_path / "gates.mmd").read_text().splitlines() if "#c62828" in line]
    assert [line.split()[1] for line in styled if "op_" in line] == ["op_flatten"]


def test_control_flow_gives_its_branches_by_name() -> None:
    npu = Target("npu")

    @npu.lowers("higher_order.cond")
    def cond(node: OpNode, true_fn: IR, false_fn: IR) -> Any:
        return len(true_fn.nodes), len(false_fn.nodes)

    lowered = npu.lower(graph_of("control_flow"))
    assert any(layer.kind == "higher_order.cond" and not layer.is_placeholder for layer in lowered)
