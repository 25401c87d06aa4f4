"""Layer tables for SCALE-Sim, ZigZag and Timeloop: the multiply-adds are those that torch counts."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import catalogue
from tests.command_line import failure
from tests.proof import captured, captured_entry, module
from torch_ir import IR, GraphError, OpNode, TensorMeta, optimize
from torch_ir.cli.dispatch import main
from torch_ir.simulators import to_scale_sim, to_timeloop, to_zigzag

# ZigZag 3.9's own check of an equation
EQUATION = r"^O(\[\w+\])+\s*\+?\s*=\s*\w(\[\w+\])+\s*[*+]\s*\w(\[(?:\w+)?\])+\s*$"
RELATION = r"^(\w+)\s*=\s*(?:(\w+)\s*\*\s*)?(\w+)\s*\+\s*(?:(\w+)\s*\*\s*)?(\w+)$"


def net() -> nn.Module:
    """A strided, a depth-wise and a grouped convolution, and a linear layer."""
    convolutions = [
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        nn.Conv2d(8, 16, 1, groups=2),
    ]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(16 * 64, 10)).eval()


def counted(model: nn.Module, *inputs: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    return counter.get_total_flops() // 2


def conv_rows(path: Path) -> list[list[int]]:
    """The layers as SCALE-Sim 3 reads a table: a row ends in a comma, and one with DP is repeated per channel."""
    found = []
    for line in path.read_text().splitlines()[1:]:
        name, *numbers = line.split(",")[:-1]
        row = [int(number) for number in numbers]
        assert row[2] <= row[0]
        assert row[3] <= row[1]
        found += [[*row[:4], 1, *row[5:]]] * row[4] if "DP" in name else [row]
    return found


def conv_macs(row: list[int]) -> int:
    height, width, filter_height, filter_width, channels, filters, stride = row
    places = ((height - filter_height) // stride + 1) * ((width - filter_width) // stride + 1)
    return places * filter_height * filter_width * channels * filters


def test_scale_sim(tmp_path: Path) -> None:
    model, x = net(), torch.randn(1, 3, 16, 16)
    ir = captured(model, x)
    assert to_scale_sim(ir, tmp_path / "conv.csv") == {
        "layers": 4, "macs": counted(model, x), "left_out": {}, "rows": 5,
    }  # fmt: skip
    rows = conv_rows(tmp_path / "conv.csv")
    assert rows[0] == [17, 17, 3, 3, 3, 8, 2]  # the input with its padding, as far as it is read
    assert len(rows) == 1 + 8 + 2 + 1
    assert sum(map(conv_macs, rows)) == counted(model, x)
    to_scale_sim(ir, tmp_path / "gemm.csv", gemm=True)
    products = [line.split(",")[1:4] for line in (tmp_path / "gemm.csv").read_text().splitlines()[1:]]
    assert sum(math.prod(map(int, row)) for row in products) == counted(model, x)


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(4, 6, (3, 2), (2, 1)), nn.Conv2d(4, 6, 3, dilation=2), nn.Conv1d(4, 6, 5, 2)]
)
def test_convolutions_that_scale_sim_cannot_say_are_products(layer: nn.Module, tmp_path: Path) -> None:
    x = torch.randn(2, 4, 20) if isinstance(layer, nn.Conv1d) else torch.randn(2, 4, 20, 20)
    to_scale_sim(captured(layer.eval(), x), tmp_path / "conv.csv")
    assert sum(map(conv_macs, conv_rows(tmp_path / "conv.csv"))) == counted(layer, x)


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_layers_of_fused_operators(name: str, tmp_path: Path) -> None:
    """An optimised graph has the same multiply-adds to simulate; none of them hides in a fused operator."""
    ir = captured_entry(name)
    better = optimize(ir, "full")[0]
    assert any(node.op_type.startswith("fused.") for node in better.nodes)
    before, after = (to_scale_sim(each, tmp_path / "layers.csv") for each in (ir, better))
    assert (after["macs"], after["left_out"]) == (before["macs"], before["left_out"])


def test_names_do_not_mean_depth_wise(tmp_path: Path) -> None:
    ir = captured(nn.Linear(4, 4).eval(), torch.randn(2, 4))
    ir.nodes[0].name = "DP,x"
    to_scale_sim(ir, tmp_path / "conv.csv")
    assert (tmp_path / "conv.csv").read_text().splitlines()[1].startswith("dp_x,")


def zigzag_macs(layer: dict[str, Any]) -> int:
    assert re.match(EQUATION, layer["equation"])
    assert all(re.match(RELATION, relation) for relation in layer["dimension_relations"])
    used = set(re.findall(r"\[(\w+)\]", layer["equation"])) - {"ix", "iy"}
    assert used == {dim.lower() for dim in layer["loop_dims"]}
    return math.prod(layer["loop_sizes"])


@pytest.mark.parametrize("name", ["mobilenet_v2", "self_attention", "mlp_mixer"])
def test_workloads_have_the_work_of_the_model(name: str, tmp_path: Path) -> None:
    entry = catalogue.find(name)
    expected = counted(entry.build().eval(), *entry.inputs())
    ir = captured_entry(name)
    to_zigzag(ir, tmp_path / "workload.yaml")
    layers = yaml.safe_load((tmp_path / "workload.yaml").read_text())
    assert [layer["id"] for layer in layers] == list(range(len(layers)))
    assert sum(map(zigzag_macs, layers)) == expected
    assert all(source <= layer["id"] for layer in layers for source in layer["operand_source"].values())
    to_timeloop(ir, tmp_path / "problems")
    problems = [yaml.safe_load(path.read_text())["problem"] for path in sorted((tmp_path / "problems").iterdir())]
    assert [list(problem["instance"].values()) for problem in problems] == [layer["loop_sizes"] for layer in layers]


def test_operands_of_zigzag(tmp_path: Path) -> None:
    """Weights have their own number; activations that of the layer before."""
    ir = captured(net(), torch.randn(1, 3, 16, 16))
    to_zigzag(ir, tmp_path / "w.yaml", bits=8)
    layers = yaml.safe_load((tmp_path / "w.yaml").read_text())
    assert [layer["operand_source"] for layer in layers] == [
        {"I": 0, "W": 0}, {"I": 0, "W": 1}, {"I": 1, "W": 2}, {"I": 2, "W": 3},
    ]  # fmt: skip
    assert layers[0]["dimension_relations"] == ["iy=2*oy+1*fy", "ix=2*ox+1*fx"]
    assert layers[0]["operand_precision"] == {"I": 8, "W": 8, "O": 16, "O_final": 8}
    attention = captured(
        module(lambda self, x: nn.functional.scaled_dot_product_attention(x, x, x)), torch.randn(2, 4, 10, 8)
    )
    to_zigzag(attention, tmp_path / "w.yaml")
    scores, values = yaml.safe_load((tmp_path / "w.yaml").read_text())
    assert (scores["loop_sizes"], values["loop_sizes"]) == ([8, 10, 10, 8], [8, 10, 8, 10])
    assert values["operand_source"] == {"I": 0, "W": 1}


def test_timeloop_projections(tmp_path: Path) -> None:
    """Every loop is in a data space, and every coefficient has a value."""
    to_timeloop(captured(net(), torch.randn(1, 3, 16, 16)), tmp_path)
    problem = yaml.safe_load((tmp_path / "0_conv2d.yaml").read_text())["problem"]
    shape = problem["shape"]
    terms = [term for space in shape["data_spaces"] for dim in space["projection"] for term in dim]
    assert {term[0] for term in terms} == set(shape["dimensions"]) == set(problem["instance"])
    assert {term[1] for term in terms if len(term) > 1} == {each["name"] for each in shape["coefficients"]}
    inputs = next(space for space in shape["data_spaces"] if space["name"] == "Inputs")["projection"]
    values = {each["name"]: each["default"] for each in shape["coefficients"]}
    height = sum((problem["instance"][loop] - 1) * values[step] for loop, step in inputs[3]) + 1
    assert height == 17


def test_what_is_left_out_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    captured_entry("unet").save("unet.json")
    assert main(["convert", "unet.json", "--to", "zigzag", "--bits", "8", "-o", "unet.yaml"]) == 0
    assert "not a layer: aten.conv_transpose2d.input (3 nodes)" in capsys.readouterr().out
    assert main(["convert", "unet.json", "--to", "timeloop", "-o", "problems", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"aten.conv_transpose2d.input": 3}
    assert main(["convert", "unet.json", "--to", "scale-sim-gemm", "-o", "unet.csv"]) == 0
    assert capsys.readouterr().out.startswith("unet.csv: 15 layers, ")
    assert (tmp_path / "unet.csv").read_text().startswith("Layer, M, N, K,\nconv2d, ")
    assert "is a folder" in failure(capsys, "convert", "unet.json", "--to", "zigzag", "-o", "problems")
    assert "--bits is for --to zigzag" in failure(capsys, "convert", "unet.json", "-o", "x.pb", "--bits", "8")


def test_graphs_without_layers_or_with_open_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no convolution or matrix product"):
        to_zigzag(captured(nn.ReLU().eval(), torch.randn(2)), tmp_path / "w.yaml")
    rows = ({0: torch.export.Dim("rows")},)
    ir = captured(nn.Linear(4, 4).eval(), torch.randn(3, 4), dynamic_shapes=rows)
    with pytest.raises(GraphError, match="depend on rows; a layer needs numbers"):
        to_zigzag(ir, tmp_path / "w.yaml")
    assert to_zigzag(ir, tmp_path / "w.yaml", {"rows": 3})["macs"] == 3 * 4 * 4


def test_rows_of_a_small_file_are_limited(tmp_path: Path) -> None:
    """SCALE-Sim has a row for each product of a batch, and a batch may be of any size."""
    ir = captured(module(lambda self, x, y: x @ y), torch.ones(2, 1, 3), torch.ones(2, 3, 1))
    for tensor in ir.tensors():
        tensor.shape, tensor.stride = (1 << 40, *tensor.shape[1:]), None
    with pytest.raises(GraphError, match="the layers have more than 1,000,000 independent products"):
        to_scale_sim(ir, tmp_path / "topology.csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attrs", [{"groups": 0}, {"stride": [1, 1, 1]}, {"stride": None}])
def test_arguments_that_no_shape_rule_checks_are_refused(attrs: dict[str, Any], tmp_path: Path) -> None:
    """The dtypes of quantised tensors have no shape rules, so that a file may contain any arguments."""
    x, w, y = (TensorMeta(name, (1, 4, 6, 6), "qint8") for name in "xwy")
    given = {"bias": None, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False}
    given |= {"output_padding": [0, 0], "groups": 1, **attrs}
    node = OpNode("y", "aten.convolution.default", [x, w], [y], given, args=["input", "weight"])
    for write in (to_scale_sim, to_timeloop, to_zigzag):
        with pytest.raises(GraphError, match="does not match the arguments of its operator"):
            write(IR([node], [x, w], [y]).clone(), tmp_path / "written")
