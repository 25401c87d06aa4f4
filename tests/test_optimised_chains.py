"""Uses of optimised graphs: lowered by class, function and pattern, drawn, counted by module, compared."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.lowering import accepting
from torch_ir import IR, OpNode, Target, extract_ir, op, optimize, render
from torch_ir.analysis.cost_model.cost_table import cost_report
from torch_ir.analysis.graph_diff.differ import diff


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q_proj(x) @ self.k_proj(x).transpose(-1, -2) * 0.3
        made: Tensor = self.out(scores.softmax(-1) @ self.v_proj(x))
        return made


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.conv(torch.relu(self.norm(x)))
        return made


class Net(nn.Module):
    """A convolution before a block that begins with a batch norm, one with its own, and attention over the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Conv2d(3, 8, 3), Block()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.attention = Attention()

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.norm(self.conv(self.block(self.first(x)))))
        made: Tensor = self.attention(F.normalize(y.flatten(2), dim=-1))
        return made


def graph(capture: str = "record") -> IR:
    return extract_ir(Net().eval().to("meta"), (torch.empty(2, 3, 4, 6, device="meta"),), capture=capture)


def optimised(level: str) -> IR:
    """The graph as a reader of the saved file gets it."""
    return IR.from_json(optimize(graph(), level)[0].to_json())


def by_class(ir: IR, *classes: type[nn.Module]) -> dict[str, str]:
    """Which module each layer that a class took is, and the class."""
    npu = Target("npu")
    for kind in classes:
        npu.lowers(kind)(lambda node, kind=kind: f"{kind.__name__} {node.origin.module}")
    return {layer.name: layer.value for layer in npu.lower(ir) if not layer.is_placeholder}


@pytest.mark.parametrize("level", ["basic", "full"])
def test_a_layer_with_its_batch_norm_is_offered_to_no_class(level: str) -> None:
    """Neither the convolution nor the batch norm is there any more; the one in the block is."""
    found = by_class(optimised(level), nn.Conv2d, nn.BatchNorm2d)
    assert list(found.values()) == ["Conv2d block.conv"]


@pytest.mark.parametrize("level", ["basic", "full"])
def test_a_module_that_lost_a_part_is_not_offered_as_a_whole(level: str) -> None:
    """Its batch norm was folded into the convolution before it, so the rest is not a block."""
    assert list(by_class(graph(), Block).values()) == ["Block block"]
    assert by_class(optimised(level), Block) == {}
    assert "block" not in optimised(level).modules
    assert "block.conv" in optimised(level).modules


def test_merged_projections_are_offered_to_no_class() -> None:
    """Query, key and value are one product over three weights; the module around them is whole, and has them all."""
    assert list(by_class(optimised("full"), nn.Linear).values()) == ["Linear attention.out"]
    npu = Target("npu")
    npu.lowers(Attention)(lambda node: sorted(tensor.key for tensor in node.inputs if tensor.key))
    (value,) = [layer.value for layer in npu.lower(optimised("full")) if not layer.is_placeholder]
    assert [key for key in value if key.endswith("proj.weight")] == [f"attention.{name}_proj.weight" for name in "kqv"]


@pytest.mark.parametrize("level", ["clean", "basic", "full"])
def test_every_layer_is_lowered_by_operator(level: str) -> None:
    """Handlers get all captured nodes that a node replaces, and every weight of the model is read once."""
    ir = optimised(level)
    npu = Target("npu")
    seen: list[tuple[str, ...]] = []
    read: list[str] = []

    def take(node: OpNode) -> str:
        seen.append(node.origins)
        read.extend(tensor.key for tensor in node.inputs if tensor.key)
        return node.op_type

    for name in {node.op_type for node in ir.all_nodes() if not node.is_call}:
        npu.lowers(name)(take)
    assert npu.lower(ir).is_complete
    captured = {node.name for node in graph().nodes}
    assert {name for origins in seen for name in origins} <= captured
    assert set(read) == {param.key for param in graph().params if param.key and "num_batches" not in param.key}
    if level != "clean":
        assert any({"conv2d", "batch_norm"} <= set(origins) for origins in seen)


def test_patterns_take_what_classes_do_not() -> None:
    npu = accepting(nn.Conv2d, nn.BatchNorm2d)

    @npu.lowers(op("aten.gelu.default", self=op("aten.conv2d.default", input="x", weight="w", bias="b")))
    def conv_gelu(node: OpNode, x: Any, w: Any, b: Any) -> Any:
        return w.producer.origins

    (value,) = [layer.value for layer in npu.lower(optimised("basic")) if layer.kind == "npu.conv_gelu"]
    assert len(value) == 2


def test_what_stands_for_several_functions_is_none_of_them() -> None:
    """The attention operator is not a torch.matmul, although one of the nodes that it replaces was."""
    npu = Target("npu")
    for function in (torch.matmul, torch.softmax, torch.Tensor.matmul, torch.Tensor.softmax, F.gelu, F.normalize):
        npu.lowers(function)(lambda node: node.op_type)
    kinds = [layer.value for layer in npu.lower(optimised("full")) if not layer.is_placeholder]
    assert "aten.scaled_dot_product_attention.default" not in kinds
    assert [kind for kind in kinds if "gelu" in kind or "normalize" in kind] == [
        kind for kind in kinds if "matmul" not in kind and "softmax" not in kind
    ]


def test_a_node_that_no_handler_takes_says_what_it_stands_for() -> None:
    missing = [row for row in accepting(nn.Conv2d).lower(optimised("basic")).missing if "conv2d" in row.op_type]
    reasons = " ".join(reason for row in missing for reason in row.reasons)
    assert "it was merged from conv2d, batch_norm; lower it by operator or by pattern" in reasons


@pytest.mark.parametrize("level", ["clean", "basic", "full"])
def test_optimised_graphs_are_drawn_counted_and_compared(level: str, tmp_path: Path) -> None:
    """Pictures at every depth, costs that add up by module, and a difference from the original alone."""
    ir, better = graph(), optimised(level)
    for depth in (1, 2, None):
        render(better, tmp_path / "graph.mmd", depth=depth)
        assert "attention" in (tmp_path / "graph.mmd").read_text()
    counted = cost_report(better)
    assert sum(int(row.work.flops) for row in counted.rows) == int(counted.total.work.flops)
    costly = {row.name for row in counted.rows if row.work.flops}
    assert (level == "clean") is bool(costly & {"conv", "norm", "first"})
    assert {"block.conv", "attention.out"} <= costly
    assert not diff(ir, better).is_equal
    assert diff(better, optimised(level)).is_equal
