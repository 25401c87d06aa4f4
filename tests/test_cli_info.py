"""`torch-ir info`: the documented text and keys, and the other facts of a file."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ir
from tests.refusals import without_digest
from tests.test_draw import mlp
from torch_ir.cli import main
from torch_ir.formats import save_protobuf

INFO = """\
Model: SimpleMLP
Nodes: 3
Inputs: 1
Outputs: 1
Weights: 4
Total parameters: 58

Input shapes:
  x: [1, 4]

Output shapes:
  linear_1: [1, 2]

Op distribution:
  aten.linear.default: 2
  aten.relu.default: 1

Weight kinds:
  parameters: 58 in 4 tensors, 232 bytes, float32
"""
DOCUMENTED = [
    "model_name", "num_nodes", "num_inputs", "num_outputs", "num_weights", "total_parameters", "input_shapes",
    "output_shapes", "op_distribution",
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    mlp().save(tmp_path / "model.json")
    return str(tmp_path / "model.json")


def facts(capsys, *arguments: str) -> dict:
    assert main(["info", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_documented_text_comes_first(file, capsys, tmp_path):
    """New lines come after it."""
    assert main(["info", file]) == 0
    text = capsys.readouterr().out
    assert text.startswith(INFO)
    assert main(["info", file, "-o", str(tmp_path / "new" / "info.txt")]) == 0
    assert (tmp_path / "new" / "info.txt").read_text() + "\n" == text


def test_the_documented_keys_come_first(file, capsys):
    found = facts(capsys, file)
    assert list(found)[: len(DOCUMENTED)] == DOCUMENTED
    assert found["op_distribution"] == {"aten.linear.default": 2, "aten.relu.default": 1}
    assert found["digest"].removeprefix("sha256:") in Path(file).read_text()


def test_buffers_are_no_parameters(tmp_path, capsys):
    """`info` and `cost` count the same numbers as learnt, and the same bytes as weights."""
    file = str(tmp_path / "norm.json")
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    torch_ir.extract_ir(model, (torch.ones(1, 3, 2, 2),), strict=False).save(file)
    found = facts(capsys, file)
    assert main(["cost", file, "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)
    learnt = sum(parameter.numel() for parameter in model.parameters())
    assert found["total_parameters"] == costs["total"]["params"] == learnt
    assert found["weight_bytes"] == costs["weight_bytes"]
    assert found["weights"]["buffers"] == {
        "tensors": 3, "elements": 9, "bytes": 40, "dtypes": {"float32": 2, "int64": 1}
    }  # fmt: skip
    assert main(["info", file]) == 0
    assert "  buffers: 9 in 3 tensors, 40 bytes, float32, int64\n" in capsys.readouterr().out


def test_open_sizes_and_the_capture(tmp_path, capsys):
    """Sizes with their ranges, and the capture method; a protobuf file shows the same."""
    batch = torch.export.Dim("batch", min=2, max=32)
    ir = torch_ir.extract_ir(
        nn.Linear(2, 2).eval(), (torch.ones(4, 2),), strict=False, dynamic_shapes={"input": {0: batch}}
    )
    ir.save(tmp_path / "a.json")
    save_protobuf(ir, tmp_path / "a.pb")
    found = facts(capsys, str(tmp_path / "a.json"))
    assert found["symbols"] == {"batch": {"min": 2, "max": 32}}
    assert (found["pytorch_version"], found["device"]) == (torch.__version__, "cpu")
    assert {**found, "digest": None} == {**facts(capsys, str(tmp_path / "a.pb")), "digest": None}
    assert main(["info", str(tmp_path / "a.json")]) == 0
    text = capsys.readouterr().out
    assert "  input: [batch, 2]\n" in text
    assert "Sizes:\n  batch: 2 to 32\n" in text
    assert f"Captured:\n  torch: {torch.__version__}\n  device: cpu\n" in text


def test_the_digest_is_the_one_that_the_file_states(tmp_path, capsys):
    """In protobuf it is the last field; a file without one has none to show."""
    mlp().save(tmp_path / "a.json")
    save_protobuf(mlp(), tmp_path / "a.pb")
    text, data = (tmp_path / "a.json").read_text(), (tmp_path / "a.pb").read_bytes()
    assert facts(capsys, str(tmp_path / "a.json"))["digest"] == json.loads(text)["digest"]
    assert facts(capsys, str(tmp_path / "a.pb"))["digest"] == f"sha256:{data[-32:].hex()}"
    assert main(["info", str(tmp_path / "a.pb")]) == 0
    assert f"  digest: sha256:{data[-32:].hex()}\n" in capsys.readouterr().out
    (tmp_path / "a.json").write_text(without_digest(text))
    (tmp_path / "a.pb").write_bytes(data[:-34])
    assert facts(capsys, str(tmp_path / "a.json"))["digest"] is facts(capsys, str(tmp_path / "a.pb"))["digest"] is None


def test_functions_and_entry_points(tmp_path, capsys):
    """A function without callers is an entry point."""
    ir = torch_ir.extract_ir(
        nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))).eval(), (torch.ones(1, 2),), strict=False
    )
    ir.functions["decode"] = torch_ir.extract_ir(nn.ReLU().eval(), (torch.ones(1, 2),), strict=False)
    ir.save(tmp_path / "a.json")
    found = facts(capsys, str(tmp_path / "a.json"))
    assert (found["functions"], found["entry_points"]) == ({"decode": 1}, ["decode"])
    assert main(["info", str(tmp_path / "a.json")]) == 0
    assert "Entry points:\n  decode: 1 nodes\n" in capsys.readouterr().out
