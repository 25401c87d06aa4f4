"""Results of lowering: layers, a file, a log, descriptions of nodes; the command; and a target that runs in numpy."""

import importlib.util
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import catalogue
from tests.graphs import chain, mlp, tensor
from tests.lowering import accepting, capture
from torch_ir import IR, Lowered, OpNode, Target, describe, extract_ir
from torch_ir.cli import main
from torch_ir.errors import SerializationError
from torch_ir.formats import lowered_from_protobuf

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "npu_target.py"


@dataclass
class Conv:
    stride: tuple[int, int]
    extra: dict[str, Any] = field(default_factory=dict)


def _lowered_to(value: Any) -> Lowered:
    npu = Target("npu")
    npu.lowers("aten.relu")(lambda node: value)
    return npu.lower(chain("aten.relu.default", "aten.neg.default"))


def test_saved_json(tmp_path: Path) -> None:
    """Dataclasses begin with their type; placeholders have reasons; tensor names are those of the graph."""
    _lowered_to(Conv((1, 2), {"pad": [None, 0.5, True]})).save(tmp_path / "deep" / "npu.json")
    document = json.loads((tmp_path / "deep" / "npu.json").read_text())
    assert document["target"] == "npu"
    assert document["inputs"] == [{"name": "x", "shape": [2, 3], "dtype": "float32"}]
    assert document["outputs"] == ["neg"]
    assert document["layers"] == [
        {"name": "relu", "kind": "aten.relu.default", "inputs": ["x"], "outputs": ["relu"], "weights": {},
         "value": {"type": "Conv", "stride": [1, 2], "extra": {"pad": [None, 0.5, True]}}},
        {"name": "neg", "kind": "aten.neg.default", "inputs": ["relu"], "outputs": ["neg"], "weights": {},
         "placeholder": ["no lowering"]},
    ]  # fmt: skip
    assert document["missing"][0]["count"] == 1


class Padding(str, Enum):
    SAME = "same"


class Unit(IntEnum):
    VECTOR = 3


def test_saved_protobuf(tmp_path: Path) -> None:
    """Nothing of the JSON is lost, not even an order; equal layers are equal bytes; the ending of the name decides."""
    values = {
        "none": None, "yes": True, "no": False, "zero": 0, "minus": -0.0, "text": "", "large": -(1 << 80), "half": 0.5,
        "numbers": [1, -(1 << 63)], "larger": [1 << 63], "flags": [True, 1], "empty": [[], {}], "z": {"b": 1, "a": ()},
        "unit": Unit.VECTOR, "units": [Unit.VECTOR], Padding.SAME: Padding.SAME, "scale": np.float64(0.1),
    }  # fmt: skip
    lowered = _lowered_to(Conv((1, 2), values))
    for name in ("deep/npu.pb", "copy.BinPB", "npu.json", "npu"):
        lowered.save(tmp_path / name)
    data = (tmp_path / "deep" / "npu.pb").read_bytes()
    assert (tmp_path / "copy.BinPB").read_bytes() == data
    assert json.dumps(lowered_from_protobuf(data)) == json.dumps(lowered.to_dict())
    text = (tmp_path / "npu.json").read_text()
    assert (tmp_path / "npu").read_text() == text
    assert lowered_from_protobuf(data) == json.loads(text)


def _nested(levels: int) -> list[Any]:
    return [] if levels == 1 else [_nested(levels - 1)]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (_nested(32), "a value is nested deeper than the 30 levels of protobuf files"),
        ({"a": [{"$dtype": 1}]}, "{'$dtype': 1} of type dict cannot be written to a file"),
        (10**200, "a whole number has more than 100 digits"),
    ],
)
def test_what_protobuf_cannot_hold_is_named_before_anything_is_written(value: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(SerializationError) as caught:
        _lowered_to(value).save(tmp_path / "npu.pb")
    assert str(caught.value) == f"layer 'relu' (aten.relu.default): {told}"
    assert not list(tmp_path.iterdir())
    _lowered_to(value).save(tmp_path / "npu.json")
    _lowered_to(_nested(31)).save(tmp_path / "npu.pb")


def _endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (tensor("x", 2), "layer 'relu' (aten.relu.default): JSON cannot represent a TensorMeta; use its name"),
        (Conv((1, object())), "layer 'relu' (aten.relu.default).stride[1]: JSON cannot represent a object"),  # type: ignore[arg-type]
        ({"a": {1, 2}}, "layer 'relu' (aten.relu.default).a: JSON cannot represent a set"),
        ({1: 2}, "layer 'relu' (aten.relu.default): JSON cannot represent 1 as a key"),
        (float("nan"), "layer 'relu' (aten.relu.default): JSON cannot represent the number nan"),
        (_endless(), "nested deeper than 50 levels, or recursive"),
        ("\ud800", "layer 'relu' (aten.relu.default): JSON cannot represent an unpaired surrogate"),
        ({"\ud800": 1}, "layer 'relu' (aten.relu.default): JSON cannot represent an unpaired surrogate"),
    ],
)
@pytest.mark.parametrize("name", ["npu.json", "npu.pb"])
def test_what_json_cannot_hold_is_named_before_anything_is_written(
    name: str, value: Any, told: str, tmp_path: Path
) -> None:
    with pytest.raises(SerializationError) as caught:
        _lowered_to(value).save(tmp_path / name)
    assert told in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_log_is_a_line_per_layer(caplog: pytest.LogCaptureFixture) -> None:
    """To a function, or to the logger: lowered layers at DEBUG, placeholders at INFO."""
    lines: list[str] = []
    accepting("aten.linear").lower(mlp(), log=lines.append)
    assert lines == ["Linear C4 N8", "ReLU  (no lowering)", "Linear C8 N2"]
    with caplog.at_level(logging.DEBUG, "torch_ir.targets"):
        accepting("aten.linear").lower(mlp())
    assert [(record.levelname, record.message) for record in caplog.records] == list(
        zip(["DEBUG", "INFO", "DEBUG"], lines, strict=True)
    )


def test_checks_are_no_layers() -> None:
    """Assertions compute nothing: they are layers only for a target that handles them."""
    x = tensor("x", 2)
    ir = IR([OpNode("check", "aten._assert_tensor_metadata.default", [x], [], args=["a"])], [x], [x])
    assert Target("npu").lower(ir).layers == []
    assert len(accepting("aten._assert_tensor_metadata").lower(ir)) == 1


class Described(nn.Module):
    """One layer of every kind with a special description, and some without."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=4, padding="same"), nn.ConvTranspose2d(8, 4, 2, 2), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Softmax(-1), nn.Dropout(0.25), nn.ELU(0.5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_describe() -> None:
    """Sizes in common notation; other nodes are described by operator, attributes and shapes."""
    ir = capture(Described(), torch.ones(1, 3, 32, 32))
    assert [describe(node) for node in ir.nodes] == [
        "Conv2d C3 N8 K7x7 S2x2 P3x3 D1x1 G1",
        "BatchNorm2d N8 eps 1e-05 momentum 0.1",
        "ReLU",
        "MaxPool2d K3x3 S2x2 P1x1 D1x1",
        "MaxPool2d K2x2 S2x2 P0x0 D1x1",
        "Conv2d C8 N8 K3x3 S1x1 Psame D1x1 G4",
        "ConvTranspose2d C8 N4 K2x2 S2x2 P0x0 D1x1 G1",
        "AdaptiveAvgPool2d O1x1",
        "aten.flatten.using_ints start_dim 1 end_dim -1 1x4x1x1 -> 1x4",
        "Linear C4 N6",
        "LayerNorm N6 eps 1e-05",
        "GELU",
        "Softmax dim -1",
        "Dropout p 0.25",
        "aten.elu.default alpha 0.5 scale 1 input_scale 1 1x6 -> 1x6",
    ]


def test_describe_never_fails() -> None:
    """A node without the expected arguments is described in the generic form."""
    x = tensor("x")
    node = OpNode("conv", "aten.conv2d.default", [x], [], args=["input"])
    assert describe(node) == "aten.conv2d.default scalar ->"
    assert describe(OpNode("n", "n", [], [])) == "n ->"


def test_iterating() -> None:
    lowered = accepting("aten.linear").lower(mlp())
    assert list(lowered) == lowered.layers
    assert len(lowered) == 3
    assert repr(lowered) == "Lowered(target='npu', layers=3, placeholders=1)"
    assert repr(accepting("aten.linear")) == "Target('npu', 1 handlers)"


# -- the verb ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a graph and a target that supports half of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    mlp().save("model.json")
    Path("mynpu.py").write_text(
        "from torch_ir import Target\n"
        "npu = Target('npu')\n"
        "npu.lowers('aten.linear')(lambda node: {'op': 'gemm'})\n"
        "odd = Target('odd')\n"
        "odd.lowers('aten.linear')(lambda node: {1, 2})\n"
    )
    yield tmp_path
    for name in ("mynpu", "mynpu_file"):
        sys.modules.pop(name, None)


def test_the_verb_prints_the_report_and_writes_the_layers(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Placeholders are not an error, unless requested."""
    command = ["lower", "model.json", "--target", "mynpu.py:npu"]
    assert main([*command, "-o", "out/lowered.json", "--picture", "out/lowered.dot"]) == 0
    assert "aten.relu.default      1  0.0 %  16.6 %  1x8 -> 1x8               no lowering" in capsys.readouterr().out
    layers = json.loads(Path("out/lowered.json").read_text())["layers"]
    assert [layer.get("value") for layer in layers] == [{"op": "gemm"}, None, {"op": "gemm"}]
    assert "relu" in Path("out/lowered.dot").read_text()
    assert main([*command, "--fail-missing", "-o", "lowered.pb", "--picture", "out/lowered.html"]) == 1
    assert Path("out/lowered.html").read_text().startswith("<!doctype html>")
    assert lowered_from_protobuf(Path("lowered.pb").read_bytes())["layers"] == layers


def test_the_verb_prints_json_or_a_log(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lower", "model.json", "--target", "mynpu.py:npu"]
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["layers"], facts["placeholders"], facts["missing"][0]["count"]) == (3, ["relu"], 1)
    assert main([*command, "--log", "--decompose"]) == 0
    assert capsys.readouterr().out.startswith("Linear C4 N8\nReLU  (no lowering; split by torch, ")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("mynpu.py", "'mynpu.py' does not name a target; write it as file.py:name"),
        ("mynpu.py:npi", "mynpu.py has no 'npi'; did you mean 'npu'?"),
        ("mynpu.py:Target", "mynpu.py:Target is not a Target, but <class"),
        ("other.py:npu", "no such file: other.py"),
        ("mynpu.py:odd", "layer 'linear' (aten.linear.default): JSON cannot represent a set"),
    ],
)
def test_the_verb_says_what_is_wrong(files: Path, target: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lower", "model.json", "--target", target, "-o", "lowered.json"]) == 1
    assert told in capsys.readouterr().err
    assert not Path("lowered.json").exists()


# -- the example ------------------------------------------------------------------------------------------------------


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("npu_target", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["npu_target"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_example_computes_resnet18_without_torch(tmp_path: Path) -> None:
    """Lowered, packed, and run by numpy in a separate process that never imports torch."""
    example = _example()
    torch.manual_seed(0)
    model = catalogue.find("resnet18").build()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # fresh statistics would make the norm an identity
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    lowered = example.npu.lower(example.graph_of_resnet18(64))
    assert lowered.is_complete
    example.pack(lowered, {key: value.numpy() for key, value in model.state_dict().items()}, tmp_path)
    image = torch.randn(2, 3, 64, 64)
    np.save(tmp_path / "image.npy", image.numpy())
    program = f"""
import sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import numpy
from pathlib import Path
from npu_target import Runtime
folder = Path({str(tmp_path)!r})
numpy.save(folder / "logits.npy", Runtime(folder)(numpy.load(folder / "image.npy"))[0])
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.from_numpy(np.load(tmp_path / "logits.npy")), model(image), rtol=1e-4, atol=1e-4
        )


def test_a_mutation_names_the_weight_by_its_key(tmp_path: Path) -> None:
    """As layers and the weight table do, in JSON and in protobuf; an input has only a name."""

    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.total += x.sum(0)
            x.mul_(2)
            return x + self.total

    lowered = Target("npu").lower(extract_ir(Counter().eval(), (torch.ones(2, 4),), strict=False))
    document = lowered.to_dict()
    (weight, _), (given, _) = document["mutations"]
    assert weight in document["weights"]
    assert given in {tensor["name"] for tensor in document["inputs"]}
    lowered.save(tmp_path / "lowered.pb")
    assert lowered_from_protobuf((tmp_path / "lowered.pb").read_bytes())["mutations"] == document["mutations"]
