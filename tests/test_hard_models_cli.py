"""`torch-ir extract` captures every model of docs/hard-models.md, as `extract_ir` does: on real values if needed."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch

from tests.hard_models import Hard, cases
from torch_ir.cli import main
from torch_ir.ir import IR

_UNSAVED = ("SubclassInput",)  # files of inputs contain only plain tensors
_SAMPLE = ["Scripted", "IntKeys", *random.Random(0).sample(sorted(cases()), 4)]
NET = """
import numpy
import torch
from torch import nn


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.layers[int(self.layers[0](x).argmax())  % 3](x)


class Scaled(nn.Module):
    def forward(self, x):
        y = x * x.abs().max().item()
        return y if x.sum() > 0 else -y


class Rounded(nn.Module):
    def forward(self, x):
        return x * float(x.abs().max())


class Item(nn.Module):
    def forward(self, x):
        return x * x.abs().max().item()


class Tanh(nn.Module):
    def forward(self, x):
        return x * float(numpy.tanh(x.abs().max().item()))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models that Python reads data of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "choices.py").write_text(NET)
    return tmp_path


def extract(hard: Hard, folder: Path) -> None:
    model = f"{hard.model.__module__}:{hard.model.__qualname__}"
    words = []
    if hard.name in _UNSAVED:
        words = ["--input", "x".join(map(str, hard.args[0].shape))]
    elif hard.args or hard.kwargs:
        torch.save(hard.kwargs or list(hard.args), folder / "inputs.pt")
        words = ["--input", f"@{folder / 'inputs.pt'}"]
    assert main(["extract", model, *words, "-o", str(folder / "graph.json")]) == 0
    IR.load(folder / "graph.json").check()


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_sample_of_hard_models(name: str, tmp_path: Path) -> None:
    extract(cases()[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cases()))
def test_every_hard_model(name: str, tmp_path: Path) -> None:
    extract(cases()[name], tmp_path)


@pytest.mark.parametrize("name", ["Choice", "Tanh"])
def test_a_model_that_needs_values_is_captured_on_random_ones(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """With a note that says so, also in JSON."""
    assert main(["extract", f"choices.py:{name}", "--input", "2x4", "-o", "net.json", "--json"]) == 0
    out, err = capsys.readouterr()
    (note,) = json.loads(out)["notes"]
    assert "captured on its initial weights and random inputs" in note
    assert note in err


def test_given_values_decide(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and inputs from files reach the recorder: the graph is that of the layer they choose."""
    state = {f"layers.{index}.{name}": torch.zeros(4, 4) if name == "weight" else torch.zeros(4)
             for index in range(3) for name in ("weight", "bias")}  # fmt: skip
    for chosen in range(3):
        state["layers.0.bias"] = torch.nn.functional.one_hot(torch.tensor(chosen), 4).float()
        torch.save(state, "net.pt")
        torch.save({"x": torch.ones(1, 4)}, "x.pt")
        assert main(["extract", "choices.py:Choice", "-i", "@x.pt", "-w", "net.pt", "-o", "net.json"]) == 0
        assert IR.load("net.json").nodes[-1]["weight"].key == f"layers.{chosen}.weight"
    assert "note" not in capsys.readouterr().err


def test_real_captures_on_values_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One way through a branch, where the default explores both."""
    torch.save(torch.ones(2, 4), "x.pt")
    assert main(["extract", "choices.py:Scaled", "-i", "x=@x.pt", "--real", "-o", "net.json"]) == 0
    assert "higher_order.cond" not in {node.op_type for node in IR.load("net.json").nodes}


def test_an_exact_number_is_said_at_capture(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a graph that could be compared on some inputs only has a verdict and a status of its own."""
    torch.save(torch.full((2, 4), 0.5), "x.pt")
    words = ["choices.py:Rounded", "-i", "x=@x.pt"]
    assert main(["extract", *words, "--capture", "record", "-o", "net.json"]) == 0
    assert re.search(r"exactly 0\.5 at choices\.py:\d+; .* without \.item\(\)", capsys.readouterr().err)
    assert main(["verify", "net.json", *words]) == 4
    out = capsys.readouterr().out
    assert re.match(r"Verification PASSED ON \d OF 6 SETS OF INPUTS\n", out)
    assert out.count("note: not compared") == 1, out
    assert "reads a number from the data: at capture the value was 0.5, now it is" in out
    assert main(["verify", "net.json", *words, "--json"]) == 4
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"].startswith("PASSED ON")
    assert record["trials"] + record["not_compared"] == 6


def test_where_nothing_was_compared_the_sides_do_not_differ(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The guards exclude the given inputs, or an operator is unknown: another status than that of a difference."""
    torch.save(torch.full((2, 4), 0.5), "x.pt")
    torch.save(torch.full((2, 4), 0.25), "other.pt")
    model = "choices.py:Rounded"
    assert main(["extract", model, "-i", "x=@x.pt", "--capture", "record", "-o", "net.json"]) == 0
    assert main(["verify", "net.json", model, "-i", "x=@other.pt"]) == 4
    out = capsys.readouterr().out
    assert "Verification FAILED, NOTHING COMPARED\n" in out
    assert "at capture the value was 0.5, now it is 0.25" in out
    ir = IR.load("net.json")
    ir.nodes[0].op_type = "mylib.unknown"
    ir.save("unknown.json")
    assert main(["verify", "unknown.json", model, "-i", "x=@x.pt", "--json"]) == 4
    record = json.loads(capsys.readouterr().out)
    assert (record["verdict"], record["is_valid"], record["trials"]) == ("FAILED, NOTHING COMPARED", False, 0)
    assert main(["verify", "net.json", "choices.py:Tanh", "-i", "x=@x.pt"]) == 3


def test_a_number_that_nothing_in_python_decides_on_is_computed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data-dependent scalar of the graph, without a guard; all sets of inputs are compared."""
    assert main(["extract", "choices.py:Item", "--input", "2x4", "-o", "net.json"]) == 0
    assert not [node for node in IR.load("net.json").nodes if node.op_type.startswith("torch_ir.")]
    assert main(["verify", "net.json", "choices.py:Item"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "Verification PASSED"
