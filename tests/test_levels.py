"""Levels: layer nodes compute the same as their operators, and can be inlined to the same graph."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import catalogue
from tests.graphs import mlp, tensor
from tests.proof import agrees, captured, captured_entry, module, ops, verdict
from torch_ir import IR, ExecutionError, GraphError, IRExecutor, OpNode, register_executor
from torch_ir.ir import Origin
from torch_ir.ir.regroup.functions import inline, outline
from torch_ir.ir.regroup.granularity import fold, public_name
from torch_ir.ir.regroup.shared_functions import share_functions
from torch_ir.ops.registry import unregister


class Block(nn.Module):
    """A residual block: a container of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.fc(x))


class Detour(nn.Module):
    """A layer that calls a module that is not its child, and continues."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.other = [other]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.other[0](x.exp() + 1)
        return out.neg()


def provenance(ir: IR) -> list[Any]:
    return [(node.name, node.op_type, node.origin, node.origins) for node in ir.nodes]


ENTRIES = catalogue.entries()
SAMPLE = [entry for entry in ENTRIES if entry.name not in ("resnet18", "resnet50", "mobilenet_v2", "unet")][::3]


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, marks=() if entry in SAMPLE else pytest.mark.slow, id=entry.name) for entry in ENTRIES],
)
def test_layers_compute_what_their_operators_do(entry: catalogue.Entry) -> None:
    """The graph is unchanged, the file of its layers verifies, and all operators are restored."""
    torch.manual_seed(0)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    ir = captured_entry(entry.name)
    before = ir.to_json()
    layers = IR.from_json(ir.at_level("module").to_json())
    assert ir.to_json() == before
    assert verdict(layers, model, *inputs, kwargs=kwargs, probe=False).is_valid
    assert provenance(layers.at_level("aten").check()) == provenance(ir)
    assert layers.at_level("module").to_json() == layers.to_json()


def test_a_small_one_as_text() -> None:
    """A layer node is named after its module; one that is a single operator has that one's arguments and attributes."""
    ir = mlp()
    ir.modules = {"fc1": "torch.nn.modules.linear.Linear", "fc2": "mylib.Linear", "relu": "torch.nn.modules.ReLU"}
    ir.node("linear").attrs["bias"] = None
    ir.node("linear").set_inputs(ir.node("linear").inputs[:2], ["input", "weight"])
    ir.params = [param for param in ir.params if param.consumers]
    assert str(ir.at_level("module").check()) == (
        "function Linear(input: float32[1, 4], weight: float32[8, 4]) {\n"
        "  linear: float32[1, 8] = aten.linear.default(input=input, weight=weight, bias=None)\n"
        "  return linear\n"
        "}\n\n"
        "function ReLU(self: float32[1, 8]) {\n"
        "  relu: float32[1, 8] = aten.relu.default(self=self)\n"
        "  return relu\n"
        "}\n\n"
        "function Linear_1(input: float32[1, 8], weight: float32[2, 8], bias: float32[2]) {\n"
        "  linear_1: float32[1, 2] = aten.linear.default(input=input, weight=weight, bias=bias)\n"
        "  return linear_1\n"
        "}\n\n"
        "graph SimpleMLP(x: float32[1, 4]) {\n"
        '  param p_fc1_weight: float32[8, 4] = "fc1.weight"\n'
        '  param p_fc2_weight: float32[2, 8] = "fc2.weight"\n'
        '  param p_fc2_bias: float32[2] = "fc2.bias"\n'
        "  uses @Linear\n"
        "  uses @ReLU\n"
        "  uses @Linear_1\n"
        "  linear: float32[1, 8] = torch.nn.Linear(input=x, weight=p_fc1_weight, bias=None, function=@Linear) as fc1\n"
        "  relu: float32[1, 8] = torch.nn.modules.ReLU(self=linear, function=@ReLU)\n"
        "  linear_1: float32[1, 2] = mylib.Linear("
        "input=relu, weight=p_fc2_weight, bias=p_fc2_bias, function=@Linear_1) as fc2\n"
        "  return linear_1,\n"
        "}\n"
    )


def test_layers_know_where_they_are_from() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Sequential(nn.BatchNorm2d(8), nn.Flatten())).eval()
    ir = captured(model, torch.randn(1, 3, 9, 9))
    conv, norm, flat = ir.at_level("module").nodes
    assert ([node.name for node in (conv, norm, flat)]) == ["0", "1_0", "1_1"]
    assert ops(ir.at_level("module")) == ["torch.nn.Conv2d", "torch.nn.BatchNorm2d", "torch.nn.Flatten"]
    assert (conv["stride"], conv["weight"].key, conv.origins) == ([2, 2], "0.weight", ("conv2d",))
    assert (norm["running_mean"].key, norm["eps"]) == ("1.0.running_mean", 1e-5)
    assert norm.origin == ir.node("batch_norm").origin
    assert norm.origin.module_class == "BatchNorm2d"


def test_layers_of_several_operators_name_weights_as_the_module_does() -> None:
    """Weights have their names within the module, other inputs are `input`, `input_1`, ..."""

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.gain * x + y

    model = module(lambda self, x, y: self.scale(y, x), scale=Scale())
    ir = captured(model, torch.randn(2, 3), torch.randn(3)).at_level("module")
    (scale,) = ir.nodes
    assert scale.op_type.endswith("<locals>.Scale")
    assert {name: read.name for name, read in zip(scale.args, scale.inputs, strict=True)} == {
        "gain": "p_scale_gain",
        "input": "y",
        "input_1": "x",
    }
    assert agrees(ir, model, torch.randn(2, 3), torch.randn(3))


def test_one_tensor_may_be_two_arguments() -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x

    model = nn.Sequential(Double()).eval()
    ir = captured(model, torch.randn(2)).at_level("module")
    assert ir.nodes[0]["self"] is ir.nodes[0]["other"]
    assert agrees(ir, model, torch.randn(2))


def test_leaf_keeps_calls_of_a_class_whole() -> None:
    """By its full name, its short name or the class itself; the outermost one wins; equal blocks are one function."""
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 4)).eval()
    ir = captured(model, torch.randn(2, 4))
    for leaf in ("tests.test_levels.Block", "Block", Block):
        blocks = ir.at_level("module", leaf=[leaf, "Linear"])
        assert ops(blocks) == ["tests.test_levels.Block", "tests.test_levels.Block", "torch.nn.Linear"]
        assert list(blocks.functions) == ["Block", "Linear"]
        assert blocks.nodes[1].args == ("input", "fc_weight", "fc_bias")
        assert agrees(blocks, model, torch.randn(2, 4))
        assert provenance(blocks.at_level("aten")) == provenance(ir)
    assert ops(ir.at_level("module", leaf=["NoSuchClass"])) == ops(ir.at_level("module"))
    whole = ir.at_level("module", leaf=[nn.Sequential])
    assert [(node.name, node.op_type) for node in whole.nodes] == [("Sequential", "torch.nn.Sequential")]


def test_a_transformer_layer_stays_whole() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False
    ).eval()
    ir = captured(model, torch.randn(1, 5, 8))
    layers = ir.at_level("module", leaf=["torch.nn.TransformerEncoderLayer"])
    assert ops(layers) == ["torch.nn.TransformerEncoderLayer"] * 3
    assert len(layers.functions) == 1
    assert verdict(layers, model, torch.randn(1, 5, 8)).is_valid
    assert provenance(layers.at_level("aten")) == provenance(ir)


def test_each_call_of_a_shared_module_is_a_layer() -> None:
    """Calls are distinguished, also those of layers inside a repeated block; they share a function."""
    model = module(lambda self, x: self.block(self.block(self.block(x))), block=Block())
    ir = captured(model, torch.randn(2, 4))
    layers = ir.at_level("module")
    assert [node.name for node in layers.nodes if node.is_call] == [
        *("block_fc", "block_act", "block_fc_1", "block_act_1", "block_fc_2", "block_act_2")
    ]
    blocks = ir.at_level("module", leaf=["Block"])
    assert [(node.name, node.origin.call) for node in blocks.nodes] == [("block", 0), ("block_1", 1), ("block_2", 2)]
    for coarse in (layers, blocks):
        assert len(coarse.functions) == len({node.op_type for node in coarse.nodes if node.is_call})
        assert agrees(coarse, model, torch.randn(2, 4))
        assert provenance(coarse.at_level("aten")) == provenance(ir)


def test_a_layer_that_is_left_and_entered_again_is_two_nodes() -> None:
    """Neither piece is the layer, and neither has its name for an operator."""
    other = nn.Linear(4, 4)
    model = module(lambda self, x: self.detour(x), other=other, detour=Detour(other))
    ir = captured(model, torch.randn(2, 4))
    layers = ir.at_level("module")
    name = "tests.test_levels.Detour"
    assert ops(layers) == [f"{name}[0]", "torch.nn.Linear", f"{name}[1]"]
    assert agrees(layers, model, torch.randn(2, 4))
    assert provenance(layers.at_level("aten")) == provenance(ir)


def test_nodes_that_give_a_size_stay_in_the_graph() -> None:
    class Pick(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.abs().nonzero() * 2).float()

    model = module(lambda self, x: self.pick(x).sum(), pick=Pick())
    ir = captured(model, torch.randn(2, 2)).at_level("module").check()
    assert "aten.nonzero.default" in ops(ir)
    assert [node.op_type[-8:] for node in ir.nodes if node.is_call] == [".Pick[0]", ".Pick[1]"]
    assert agrees(ir, model, torch.tensor([[1.0, 0.0], [2.0, 3.0]]))


def test_sizes_and_control_flow_stay_as_they_are() -> None:
    """Symbols and constraints apply to layers too, and the branches of a condition are folded as well."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.one(x), lambda x: self.two(x) - 1, (self.zero(x),))

    model = module(forward, zero=nn.Linear(4, 4), one=nn.Linear(4, 2), two=nn.Linear(4, 2))
    ir = captured(model, torch.randn(3, 4), dynamic_shapes=({0: Dim("batch", max=64)},))
    for body in ir.functions.values():  # torch does not report the modules of the branches
        body.nodes[0].origin = Origin("zero", 1, "Linear")
    layers = ir.at_level("module").check()
    assert (layers.symbols.keys(), layers.constraints) == (ir.symbols.keys(), ir.constraints)
    assert {op for body in layers.functions.values() for op in ops(body)} >= {"torch.nn.Linear", "aten.sub.Tensor"}
    for rows in (2, 7):
        assert agrees(layers, model, torch.ones(rows, 4))
        assert agrees(layers, model, -torch.ones(rows, 4))


def test_gaps_stay_in_sight_unless_their_layer_is_asked_for() -> None:
    ir = mlp()
    ir.node("linear_1").op_type = "opaque.numpy"
    assert ops(ir.at_level("module")) == ["Linear", "ReLU", "opaque.numpy"]
    assert ops(ir.at_level("module", leaf=["Linear"])) == ["Linear", "ReLU", "Linear"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(
        GraphError, match=r"unknown level 'modul'; expected one of aten, function, module; did you mean 'module'\?"
    ):
        mlp().at_level("modul")


def test_one_name_in_place_of_several_is_refused() -> None:
    """Its letters would be taken as names."""
    with pytest.raises(GraphError, match=r"wrap the one in a tuple: \('Linear',\)"):
        mlp().at_level("module", leaf="Linear")


def test_a_layer_does_not_give_what_it_only_passes_on() -> None:
    """A cast to the same dtype returns the tensor itself: consumers of the cast may read that."""

    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.to(torch.float32)
            return x * x.mean()

    model = module(lambda self, x: x + self.norm(x), norm=Norm())
    ir = captured(model, torch.randn(2, 3)).at_level("module").check()
    assert len(ir.nodes[0].outputs) == 1
    assert agrees(ir, model, torch.randn(2, 3))


def test_fold_makes_a_layer_of_any_nodes() -> None:
    ir = mlp()
    call = fold(ir, ir.nodes[:2], "first", "mylib.LinearReLU")
    assert (call.name, call.op_type, call.origins) == ("first", "mylib.LinearReLU", ("linear", "relu"))
    assert call.args == ("input", "fc1_weight", "fc1_bias")
    assert [node.origin.module for node in inline(ir.check(), call)] == ["fc1", "relu"]
    ir.graph_outputs = ir.graph_inputs
    with pytest.raises(GraphError, match=r"no output of OpNode\('linear_1'"):
        fold(ir, ir.nodes[-1:], "last", "mylib.Last")


def test_equal_functions_become_one() -> None:
    """Whatever their tensor names; not if an attribute, a shape or a connection differs."""

    def ir_of(*scales: float) -> IR:
        last = x = tensor("x", 2)
        nodes = []
        for index, scale in enumerate(scales):
            made = tensor(f"mul_{index}", 2)
            nodes.append(OpNode(made.name, "aten.mul.Tensor", [last], [made], {"other": scale}, args=["self"]))
            last = made
        return IR(nodes, [x], [last])

    ir = ir_of(2.0, 3.0, 2.0, 2, 2.0)
    for index, node in enumerate(list(ir.nodes)):
        outline(ir, [node], f"scale_{index}", op_type="other" if index == 4 else "call")
    assert share_functions(ir) == 1
    assert [node.attrs["function"] for node in ir.check().nodes] == [
        "scale_0",
        "scale_1",
        "scale_0",
        "scale_3",
        "scale_4",
    ]
    assert ir.nodes[2].args == ("x",)
    assert str(ir.at_level("aten").check()) == str(ir_of(2.0, 3.0, 2.0, 2, 2.0))


@pytest.mark.parametrize(
    ("full", "public"),
    [
        ("torch.nn.modules.conv.Conv2d", "torch.nn.Conv2d"),
        ("torch.ao.nn.quantized.modules.linear.Linear", "torch.ao.nn.quantized.modules.linear.Linear"),
        ("mylib.torch.nn.modules.conv.Conv2d", "mylib.torch.nn.modules.conv.Conv2d"),
        ("Conv2d", "Conv2d"),
    ],
)
def test_public_names_of_layers(full: str, public: str) -> None:
    assert public_name(full) == public


def test_a_layer_that_cannot_run_is_named() -> None:
    """One function computes several layers; the error names the failing one."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Linear(4, 4))).eval()
    ir = captured(model, torch.randn(2, 4)).at_level("module")
    (linear,) = ir.functions["Linear"].nodes
    linear.op_type, linear.attrs = "aten.baddbmm.default", {"beta": 1, "alpha": 1}
    linear.set_inputs(linear.inputs, ["self", "batch1", "batch2"])
    with pytest.raises(ExecutionError, match=r"OpNode\('linear', 'aten.baddbmm.default'\).*; in OpNode\('1_0'.*1\.0"):
        IRExecutor(ir, model.state_dict())(torch.randn(2, 4))


def test_an_executor_for_one_class_of_layers_leaves_the_others_alone() -> None:
    """`torch.nn.Linear` is not an overload of `torch.nn.ReLU`."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    ir = captured(model, torch.randn(2, 4)).at_level("module")
    register_executor("torch.nn.Linear")(lambda inputs, attrs: [inputs[0] - 1])
    try:
        assert torch.equal(IRExecutor(ir, model.state_dict())(torch.ones(2, 4) * 3), torch.full((2, 4), 2.0))
        assert torch.equal(IRExecutor(ir, model.state_dict())(torch.zeros(2, 4)), torch.zeros(2, 4))
    finally:
        unregister("torch.nn.Linear")
