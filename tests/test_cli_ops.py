"""`torch-ir ops` and `torch-ir passes`: the operators of a file and of torch, and the passes of the optimiser."""

import json

import pytest
import torch
from torch import nn

import torch_ir
from tests.command_line import failure
from torch_ir.analysis.dependencies.operators_used import operator_uses
from torch_ir.cli import main
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.passes import list_passes
from torch_ir.passes.optimize_levels import LEVELS


class Branching(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: (x.relu() + 1,), lambda x: (x.neg(),), (x,))[0].relu()


@pytest.fixture
def file(tmp_path):
    ir = torch_ir.extract_ir(nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), (torch.ones(1, 2),), strict=False)
    ir.save(tmp_path / "model.json")
    return str(tmp_path / "model.json")


def printed(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_the_operators_of_a_file(file, capsys):
    text = printed(capsys, "ops", file)
    assert text.splitlines()[0] == "Sequential: 2 nodes, 2 operators"
    assert text.splitlines()[2].split() == ["operator", "nodes", "share", "family", "dtypes", "first", "at"]
    assert "aten.linear.default      1  50.0%  matmul      float32  linear in 0" in text
    record = json.loads(printed(capsys, "ops", file, "--json", "--check"))
    assert record["num_nodes"] == 2
    assert record["operators"][1] == {
        "operator": "aten.relu.default", "nodes": 1, "share": 0.5, "family": "activation", "dtypes": ["float32"],
        "first_node": "relu", "first_module": "1", "why_not_run": "",
    }  # fmt: skip


def test_operators_that_cannot_run_are_told(tmp_path, capsys):
    """With --check, and status 1; without it, torch is not used."""
    x, y, z = (TensorMeta(name, (1,), "float32") for name in "xyz")
    nodes = [OpNode("y", "mine.special.default", [x], [y]), OpNode("z", "aten.set_.source_Tensor", [y], [z])]
    IR(nodes, [x], [z], []).save(tmp_path / "a.json")
    assert main(["ops", str(tmp_path / "a.json")]) == 0
    capsys.readouterr()
    assert main(["ops", str(tmp_path / "a.json"), "--check"]) == 1
    text = capsys.readouterr().out
    assert "no: torch has no such operator, and no executor is registered" in text
    assert "no: it changes or exposes the storage of a tensor" in text


def test_operators_in_branches_and_repeated_blocks_count(tmp_path):
    """Those of a branch once, those of a function as often as it is called."""
    ir = torch_ir.extract_ir(Branching().eval(), (torch.ones(2),), strict=False)
    counts = {use.op_type: use.count for use in operator_uses(ir)}
    assert (counts["aten.relu.default"], counts["aten.neg.default"], counts["higher_order.cond"]) == (2, 1, 1)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(6)))
    folded = torch_ir.extract_ir(layers.eval(), (torch.ones(1, 2),), strict=False, blocks="function")
    assert any(node.is_call for node in folded.nodes)
    assert {use.op_type: use.count for use in operator_uses(folded)} == {
        "aten.linear.default": 6, "aten.tanh.default": 6
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "aten.conv2d",
            ["aten.conv2d.default\n", "aten.conv2d.padding\n", "Tensor? bias=None", "multiply-adds: The wh"],
        ),
        (
            "relu_",
            ["aten.relu_.default\n", "effects: writes self\n", "multiply-adds: not counted\n", "in a graph: runs\n"],
        ),
        ("aten::conv2d.padding", ["aten.conv2d.padding\n"]),
        ("aten.bernoulli.p", ["effects: may draw random numbers\n"]),
        ("aten.select.int", ["effects: may return a view of an input\n", "family: movement\n"]),
        ("aten.from_file.default", ["in a graph: rejected, because it reads or writes files\n"]),
        ("higher_order.cond", ["higher_order.cond(pred, true_fn, false_fn, operands)\n"]),
    ],
)
def test_what_is_known_about_an_operator(name, parts, capsys):
    text = printed(capsys, "ops", name)
    assert [part for part in parts if part not in text] == []


def test_searching_operators(capsys):
    """All that torch has registered, by a part of the name."""
    names = [record["operator"] for record in json.loads(printed(capsys, "ops", "--search", "CONV2D", "--json"))]
    assert {"aten.conv2d.default", "quantized.conv2d.new"} <= set(names)
    assert all("conv2d" in name for name in names)
    everything = printed(capsys, "ops", "--list").splitlines()
    assert len(everything) > 2000
    assert failure(capsys, "ops", "--search", "xyzzy") == "no operator of torch has 'xyzzy' in its name"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of: an IR file, the name of an operator, --search WORD, --list"),
        (
            ["aten.conv2d", "--list"],
            "give one of: an IR file, the name of an operator, --search WORD, --list",
        ),
        (["aten.conv2d", "--check"], "--check applies to the operators of a graph"),
        (["conv22d"], "torch has no operator 'conv22d'; did you mean 'aten.conv2d'?"),
        (["nothing.json"], "cannot read nothing.json: No such file or directory"),
    ],
)
def test_mistakes_in_ops_are_one_line(arguments, message, capsys):
    assert failure(capsys, "ops", *arguments) == message


def test_passes_are_listed_and_explained(capsys):
    """By name with their first level; each with its docstring and its rules."""
    text = printed(capsys, "passes")
    assert printed(capsys, "optimize", "--list") == text
    assert [line.split()[0] for line in text.splitlines()[1:]] == [each.name for each in list_passes()]
    assert "decompose              -      Decompose operators" in text
    one = printed(capsys, "passes", "fold-constants")
    assert "\n  before   a = arange(128)" in one
    assert "  levels: clean, basic, full\n  options: limit=65536 (int)\n  may raise: nothing\n" in one
    assert "  rule norm_after_layer\n    batch_norm(conv(x, w, b))  ->" in printed(capsys, "passes", "fold-batch-norm")
    assert "did you mean 'casts'?" in failure(capsys, "passes", "cats")


def test_passes_as_json(capsys):
    records = {record["name"]: record for record in json.loads(printed(capsys, "passes", "--json"))}
    for level, names in LEVELS.items():
        assert all(level in records[name]["levels"] for name in names)
    assert records["decompose"]["options"] == [{"name": "to", "type": "str", "default": "core"}]
    assert records["transposes"] == json.loads(printed(capsys, "passes", "transposes", "--json"))
