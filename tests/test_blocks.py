"""Repeated blocks as functions: one body for equal layers, the same analyses as the flat graph, and inlining."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import catalogue
from tests.architectures import NOT_CAPTURED, architectures
from tests.architectures.sweep import REFUSED, extract
from tests.graphs import tensor, weight
from tests.proof import captured, captured_entry
from torch_ir import IR, Contract, IRExecutor, OpNode, Target, cost, coverage, diff
from torch_ir.cli.dispatch import main
from torch_ir.cli.verbs.info import summarise
from torch_ir.draw.dot import to_dot
from torch_ir.draw.scene import build_scene
from torch_ir.ir import Origin, Param, Symbol, TensorMeta
from torch_ir.ir.regroup.functions import inline, inline_all

# with the number of calls of each function
MODELS = {
    "bert": [2],
    "control_flow": [],
    "inception": [2, 2],
    "llama": [3],
    "mobilenet_v2": [2, 2, 3, 2, 2],
    "moe": [4],
    "resnet50": [2, 3, 5, 2],
    "siamese": [2],
}
TRANSFORMERS = {
    "llama": [2],
    "mixtral": [2],
    "deepseek_v3": [],
    "gpt_oss": [2],
    "gemma3_text": [2, 2],  # the positions are computed twice, too
    "albert": [2],
    "t5": [2, 2],  # the first blocks have a bias that the others read, but their last parts are equal
    "whisper": [2, 2],
    "swin": [],
}
# A picture also folds layers that read tensors of other strides, which are not equal as functions.
OTHER_PICTURES = ("SpeechT5ForTextToSpeech", "FastSpeech2ConformerModel")


def from_catalogue(name: str) -> IR:
    return captured_entry(name)


def from_transformers(name: str, folder: Path) -> IR | None:
    architecture = next(each for each in architectures() if each.name == name)
    return None if extract(architecture, folder) == REFUSED else IR.load(folder / f"{name}.json")


def calls(ir: IR) -> list[int]:
    return list(Counter(node.attrs["function"] for node in ir.nodes if node.is_layer and node.is_call).values())


def check_form(flat: IR) -> list[int]:
    """Fold a graph, compare all analyses of both forms, and inline; return the number of calls of each function."""
    before = flat.to_json()
    folded = flat.fold_blocks().check()
    assert flat.to_json() == before
    found = calls(folded)
    assert sum(found) == 0 or len(folded.nodes) < len(flat.nodes)
    check_answers(flat, folded)
    again = IR.from_json(folded.to_json())
    for form in (folded, again):
        inline_all(form)
        assert form.to_json() == before
    return found


def check_answers(flat: IR, folded: IR) -> None:
    """Compare costs, memory, drawings and lowerings of both forms of a graph."""
    costs = cost(flat), cost(folded)
    assert costs[0].amounts() == costs[1].amounts()
    assert costs[0].unknown == costs[1].unknown
    assert listed(*(each.by_op() for each in costs))
    assert all(listed(*(each.by_module(depth) for each in costs)) for depth in (None, 1, 3))
    facts = summarise(folded)
    assert facts.get("op_distribution_inline", facts["op_distribution"]) == summarise(flat)["op_distribution"]
    assert facts.get("num_nodes_inline", facts["num_nodes"]) == len(flat.nodes)
    if flat.model_name not in OTHER_PICTURES:
        assert to_dot(build_scene(flat, fold=True)) == to_dot(build_scene(folded, fold=True, open_calls=True))
    operators = sorted({node.op_type for node in flat.nodes})
    some = random.Random(len(flat.nodes)).sample(operators, len(operators) * 3 // 4)
    for target in (Contract("npu", some or ["aten.add"]), target_of(some)):
        reports = [coverage(form, target, decompose=False).to_dict() for form in (flat, folded)]
        assert json.dumps(reports[0]) == json.dumps(reports[1])
    classes = [node.op_type for node in folded.nodes if node.is_layer and node.is_call]
    for handled in (some, [*some, *classes[:1]]):
        lowered = [target_of(handled).lower(form).to_dict() for form in (flat, folded)]
        assert json.dumps(lowered[0]) == json.dumps(lowered[1])
    for level in ("function", "module"):
        assert folded.at_level(level).to_json() == flat.at_level(level).to_json()
    for other in (flat, folded):
        assert diff(folded, other, ignore_origins=False).differences == ()


def listed(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two tables have the same rows in the same order."""
    return list(one.items()) == list(other.items())


def target_of(operators: list[str]) -> Target:
    target = Target("npu")
    for operator in operators:
        target.lowers(operator)(lambda node: [node.op_type, [tensor.key for tensor in node.inputs]])
    return target


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_of_the_catalogue(name: str) -> None:
    """Both forms of a graph return the same analyses, and inlining restores the same file."""
    assert check_form(from_catalogue(name)) == MODELS[name]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_sample_of_transformers(name: str, tmp_path: Path) -> None:
    """Layers are one function, or two where they alternate; a first layer that is another one stays as it is."""
    flat = from_transformers(name, tmp_path)
    assert flat is not None
    assert check_form(flat) == TRANSFORMERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.name for entry in catalogue.entries()])
def test_the_catalogue(name: str) -> None:
    check_form(from_catalogue(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in architectures() if each.name not in NOT_CAPTURED])
def test_transformers(name: str, tmp_path: Path) -> None:
    flat = from_transformers(name, tmp_path)
    assert flat is not None
    check_form(flat)


class Block(nn.Module):
    """A block with two independent parts that returns both."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.lift = nn.Linear(4, 8)
        self.slope = slope

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = torch.chunk(self.lift(x), 2, dim=-1)
        return torch.nn.functional.leaky_relu(left, self.slope) + x, right


class Tower(nn.Module):
    """Consecutive blocks, whose side results are summed."""

    def __init__(self, *slopes: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(slope) for slope in slopes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x
        for block in self.blocks:
            x, beside = block(x)
            total = total + beside.abs()
        return total + x


def test_one_function_for_equal_blocks() -> None:
    """A call is a layer: it has the class of the block, its path and weights, and the captured nodes as origins."""
    flat = captured(Tower(0.1, 0.1, 0.1).eval(), torch.randn(2, 4))
    ir = flat.fold_blocks()
    first, second, third = (node for node in ir.nodes if node.is_call)
    assert first.is_layer
    assert first.op_type == "tests.test_blocks.Block"
    assert [node.name for node in (first, second, third)] == ["blocks_0", "blocks_1", "blocks_2"]
    assert second.origin.module == "blocks.1"
    assert second.origins == ("linear_1", "chunk_1", "leaky_relu_1", "add_2")
    assert [tensor.key for tensor in second.inputs] == [None, "blocks.1.lift.weight", "blocks.1.lift.bias"]
    assert list(ir.functions) == ["Block"]
    assert [node.origin.module for node in ir.functions["Block"].nodes] == ["lift", "", "", ""]
    assert ir.params[0].name == flat.params[0].name
    assert ir.at_level("aten").to_json() == flat.to_json()


def test_a_text_that_looks_like_a_function_is_a_text() -> None:
    """Only names of functions keep blocks from being folded."""
    flat = captured(Tower(0.1, 0.1).eval(), torch.randn(2, 4))
    for node in flat.nodes:
        node.attrs["note"] = "FunctionRef('Block')"
    folded = flat.fold_blocks()
    assert len([node for node in folded.nodes if node.is_call]) == 2
    assert folded.at_level("aten").to_json() == flat.to_json()


def test_both_forms_compute_the_same() -> None:
    model = Tower(0.1, 0.1, 0.2, 0.2).eval()
    flat, x = captured(model, torch.randn(2, 4)), torch.randn(2, 4)
    folded = flat.fold_blocks()
    assert calls(folded) == [2, 2]
    results = [IRExecutor(ir, model.state_dict())(x)[0] for ir in (flat, folded)]
    assert torch.equal(results[0], results[1])


def test_sizes_that_vary() -> None:
    """A function sees the sizes of the graph around it."""
    model = Tower(0.1, 0.1, 0.1).eval()
    flat = captured(model, torch.randn(2, 4), dynamic_shapes=({0: Dim("batch")},))
    assert check_form(flat) == [3]
    result = IRExecutor(flat.fold_blocks(), model.state_dict())(torch.ones(5, 4))[0]
    assert torch.equal(result, IRExecutor(flat, model.state_dict())(torch.ones(5, 4))[0])
    small = flat.fold_blocks().specialize(batch=3)
    assert small.at_level("aten").to_json() == flat.specialize(batch=3).to_json()


def test_calls_go_inline_one_by_one_under_their_names() -> None:
    """In any order, names and origins are the captured ones."""
    flat = captured(Tower(0.1, 0.1, 0.1).eval(), torch.randn(2, 4))
    ir = flat.fold_blocks()
    for name in ("blocks_1", "blocks_2", "blocks_0"):
        inline(ir, ir.node(name))
    assert ir.to_json() == flat.to_json()


def pair(change: Callable[[OpNode, OpNode], None] = lambda add, mul: None) -> IR:
    """Twice x * weight + x, from `layers.0` and `layers.1`; the second block may be changed."""
    x = tensor("x", 2, 3)
    last, nodes, params = x, list[OpNode](), list[TensorMeta]()
    for index in range(2):
        params.append(weight(f"w{index}", 3, keys=(f"layers.{index}.w",)))
        made, summed = tensor(f"mul_{index}", 2, 3), tensor(f"add_{index}", 2, 3)
        origin = Origin(f"layers.{index}", 0, "Layer")
        mul = OpNode(made.name, "aten.mul.Tensor", [last, params[-1]], [made], args=["self", "other"], origin=origin)
        add = OpNode(
            summed.name, "aten.add.Tensor", [made, last], [summed], {"alpha": 1}, args=["self", "other"], origin=origin
        )
        nodes += [mul, add]
        last = summed
    change(mul, add)
    modules = {f"layers.{index}": "mylib.Layer" for index in range(2)}
    return IR(nodes, [x], [last], params=params, modules=modules).check()


def test_blocks_by_hand() -> None:
    """No capture is needed, only modules whose names are numbers."""
    ir = pair().fold_blocks()
    assert str(ir) == (
        "function Layer(input: float32[2, 3], w: float32[3]) {\n"
        "  mul_0: float32[2, 3] = aten.mul.Tensor(self=input, other=w)\n"
        "  add_0: float32[2, 3] = aten.add.Tensor(self=mul_0, other=input, alpha=1)\n"
        "  return add_0\n"
        "}\n\n"
        "graph(x: float32[2, 3]) {\n"
        '  param w0: float32[3] = "layers.0.w"\n'
        '  param w1: float32[3] = "layers.1.w"\n'
        "  uses @Layer\n"
        "  add_0: float32[2, 3] = mylib.Layer(input=x, w=w0, function=@Layer) as layers_0\n"
        "  add_1: float32[2, 3] = mylib.Layer(input=add_0, w=w1, function=@Layer) as layers_1\n"
        "  return add_1,\n"
        "}\n"
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda mul, add: add.attrs.update(alpha=1.0), id="1.0 is not 1"),
        pytest.param(lambda mul, add: add.attrs.update(alpha=True), id="True is not 1"),
        pytest.param(lambda mul, add: setattr(add, "op_type", "aten.sub.Tensor"), id="operator"),
        pytest.param(lambda mul, add: setattr(add, "inputs", add.inputs[::-1]), id="wiring"),
        pytest.param(lambda mul, add: add.set_inputs(add.inputs, ["other", "self"]), id="arguments"),
        pytest.param(lambda mul, add: setattr(mul.output, "stride", (1, 2)), id="strides"),
        pytest.param(lambda mul, add: setattr(mul.output, "dtype", "float16"), id="dtype"),
        pytest.param(lambda mul, add: setattr(mul.inputs[1], "stride", (2,)), id="strides of a weight"),
        pytest.param(lambda mul, add: setattr(add, "origin", add.origin._replace(module="layers.1.act")), id="module"),
        pytest.param(lambda mul, add: setattr(add, "origins", ("add", "relu")), id="stands for several"),
        pytest.param(lambda mul, add: setattr(mul.output, "name", "odd"), id="name that cannot be told again"),
        pytest.param(lambda mul, add: setattr(add, "origin", Origin("layers.1", 0, function="f@1")), id="function"),
    ],
)
def test_blocks_that_differ_stay_as_they_are(change: Callable[[OpNode, OpNode], None]) -> None:
    flat = pair(change)
    assert flat.fold_blocks().to_json() == flat.to_json()


def test_a_function_gives_all_that_any_call_of_it_must_give() -> None:
    """Here only the first product is read outside; it is a result of both calls, and the blocks stay equal."""
    flat = pair()
    flat.graph_outputs = [*flat.graph_outputs, flat.node("mul_0").output]
    folded = flat.fold_blocks()
    assert [len(node.outputs) for node in folded.nodes] == [2, 2]
    inline_all(folded)
    assert folded.to_json() == flat.to_json()


def test_blocks_without_a_result_are_no_functions() -> None:
    flat = pair()
    flat.graph_outputs = flat.graph_inputs
    flat.nodes[2].inputs = (flat.graph_inputs[0], flat.nodes[2].inputs[1])
    flat.nodes[3].inputs = (flat.nodes[3].inputs[0], flat.graph_inputs[0])
    assert flat.check().fold_blocks().to_json() == flat.to_json()


def test_a_size_that_a_block_gives_keeps_it_inline() -> None:
    flat = pair()
    flat.symbols["u0"] = Symbol("u0", tensor=flat.nodes[1].output)
    assert len(flat.check().fold_blocks().nodes) == 4


@pytest.mark.parametrize(
    "marks", [("", ""), ("", "_"), ("_", "_"), ("_1", "_1"), ("_1_", "_1"), ("_", "__"), ("x", "x_")]
)
def test_names_of_tensors_come_back(marks: tuple[str, str]) -> None:
    """Blocks whose tensor names would be lost are not folded."""
    flat = pair()
    for node, mark in zip(flat.nodes[::2], marks, strict=True):
        node.output.name = node.name + mark
    folded = flat.check().fold_blocks()
    inline_all(folded)
    assert folded.to_json() == flat.to_json()


def test_nodes_that_were_dropped_read_nothing() -> None:
    """A node that was removed from the graph may still refer to its inputs."""
    flat = pair()
    dropped = OpNode("neg", "aten.neg.default", [flat.nodes[0].output], [tensor("neg", 2, 3)], args=["self"])
    folded = flat.fold_blocks()
    assert [len(node.outputs) for node in folded.nodes] == [1, 1]
    assert dropped not in folded.nodes


def test_a_gap_stays_in_sight() -> None:
    """Placeholders for code outside torch are never inside a function."""
    flat = pair()
    for node in flat.nodes[::2]:
        node.op_type = "opaque.numpy"
    assert len(flat.fold_blocks().nodes) == 4


def test_a_call_that_is_left_and_entered_again_is_parts() -> None:
    """None of them is the whole module, so none has its name: an executor or handler of the class would do it wrong."""
    flat = pair()
    x, nodes = flat.graph_inputs[0].copy(), list[OpNode]()
    for node in flat.nodes:
        again = [OpNode(f"{node.name}{mark}", "aten.neg.default", [], [], origin=node.origin) for mark in "ab"]
        for one in again:
            one.set_inputs([nodes[-1].output if nodes else x], ["self"])
            one.outputs = (tensor(one.name, 2, 3),)
            nodes.append(one)
        if node.op_type == "aten.mul.Tensor":
            nodes.append(OpNode(f"exp_{len(nodes)}", "aten.exp.default", [nodes[-1].output], [], args=["self"]))
            nodes[-1].outputs = (tensor(nodes[-1].name, 2, 3),)
    flat = IR(nodes, [x], [nodes[-1].output], modules=flat.modules).check()
    folded = flat.fold_blocks()
    assert [node.op_type for node in folded.nodes if node.is_call] == ["mylib.Layer[0]", "mylib.Layer[1]"] * 2
    assert not any(node.is_layer for node in folded.nodes)
    inline_all(folded)
    assert folded.to_json() == flat.to_json()


def test_constants_are_arguments() -> None:
    """Each call gets the constant that its block read."""
    flat = pair()
    for param, values in zip(flat.params, (b"\0" * 12, b"\1" * 12), strict=True):
        param.param = Param((f"c{values[0]}",), "constant")
    assert [[t.key for t in node.inputs][1] for node in flat.fold_blocks().nodes] == ["c0", "c1"]


def test_names_that_calls_would_take() -> None:
    """The name of a call differs from all nodes, including those inside functions."""
    flat = pair()
    flat.nodes[0].name = flat.nodes[0].output.name = "layers_1"
    flat.nodes[0].origins = ("layers_1",)
    folded = flat.fold_blocks()
    assert [node.name for node in folded.nodes] == ["layers_0", "layers_1_1"]
    inline(folded, folded.node("layers_1_1"))
    inline_all(folded)
    assert folded.to_json() == flat.to_json()


def test_info_and_pictures_of_a_file_in_function_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`info` shows the stored and the inlined counts; `visualize --fold` draws the body of a block once."""
    flat, folded = tmp_path / "flat.json", tmp_path / "folded.json"
    blocks = pair()
    for index, node in enumerate(blocks.nodes[::2]):
        node.origin = Origin(f"layers.{index}.scale", 0, "Scale")
    blocks.save(flat)
    blocks.fold_blocks().save(folded)
    assert main(["info", str(folded)]) == 0
    text = capsys.readouterr().out
    assert "Nodes: 2 (4 with functions inlined)\n" in text
    assert "Function calls:\n  Layer: 2\n" in text
    pictures = []
    for file in (flat, folded):
        assert main(["visualize", str(file), "--fold"]) == 0
        pictures.append(capsys.readouterr().out)
    assert pictures[0] == pictures[1]
    assert "op_mul_0" in pictures[0]
    assert main(["visualize", str(folded), "--leaf", "Layer", "--fold"]) == 0
    assert "op_mul_0" not in capsys.readouterr().out


def test_a_file_of_layers_is_drawn_as_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls of leaf modules are the boxes that the user requested."""
    file = tmp_path / "layers.json"
    pair().at_level("module").save(file)
    assert main(["visualize", str(file), "--fold"]) == 0
    assert "op_mul_0" not in capsys.readouterr().out


def test_cost_of_whole_calls() -> None:
    """With the option, a call counts under its own name."""
    costs = cost(pair().fold_blocks())
    assert list(costs.by_op()) == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert list(costs.by_op(whole_calls=True)) == ["mylib.Layer"]
    assert costs.by_op(whole_calls=True)["mylib.Layer"].amounts() == costs.amounts()
    assert list(costs.by_module(whole_calls=True)) == ["layers.0", "layers.1"]
