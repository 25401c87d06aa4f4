"""Mistakes of users: names that do not exist, and files of the wrong kind, are one sentence that says what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.command_line import failure
from torch_ir import TensorMeta, extract_ir
from torch_ir.cli import main
from torch_ir.cli.models.config import load_config, model_class
from torch_ir.errors import CommandError
from torch_ir.ir import IR

NET = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

def make():
    return nn.Sequential(Block(), Block())
"""


@pytest.fixture(scope="module")
def graph() -> IR:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        return extract_ir(model.eval(), (torch.empty(2, 4),))


@pytest.fixture
def here(tmp_path, monkeypatch, graph):
    graph.save(tmp_path / "net.json")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_all_sizes_that_need_a_number_are_named_at_once(here, capsys, verb):
    """With numbers in their ranges; and every command that runs a graph takes the word `random` for weights."""
    with torch.device("meta"):
        sizes = {0: Dim("batch"), 1: Dim("rows", min=20, max=30)}
        extract_ir(nn.Linear(4, 8).eval(), (torch.empty(2, 25, 4),), dynamic_shapes=(sizes,)).save("open.json")
    message = failure(capsys, verb, "open.json", "--weights", "random")
    assert message.endswith("needs numbers for its sizes 'batch', 'rows': add --dim batch=8 --dim rows=20")
    assert main([verb, "open.json", "--weights", "random", *message.partition(": add ")[2].split()]) == 0


@pytest.mark.parametrize("level", [(), ("--level", "module"), ("--level", "aten")])
@pytest.mark.parametrize("verb", ["info", "draw", "explore"])
def test_a_leaf_that_no_module_has_is_refused(here, capsys, verb, level):
    """It was ignored before."""
    message = "--leaf: no node comes from a module of class 'Linaer'; did you mean 'Linear'?"
    assert failure(capsys, verb, "net.json", "--leaf", "Linaer", *level, "-o", "out.html") == message
    assert not (here / "out.html").exists()


def test_a_leaf_is_checked_when_a_model_is_captured(here, capsys):
    words = ["extract", "net.py:make", "--input", "2x4", "-o", "out.json", "--leaf"]
    assert failure(capsys, *words, "Blok").endswith("a module of class 'Blok'; did you mean 'Block'?")
    assert not (here / "out.json").exists()
    for name in ("Block", "Linear", "torch.nn.Linear", "torch.nn.modules.linear.Linear"):
        assert main([*words, name]) == 0
        assert main(["info", "out.json", "--leaf", name]) == 0


def test_a_leaf_of_one_of_two_compared_graphs(here, capsys):
    """It is enough that one of them has it."""
    x = TensorMeta("x", (1,), "float32")
    IR([], [x], [x]).save("other.json")
    for verb, output in (("draw", "out.mmd"), ("explore", "out.html")):
        assert main([verb, "other.json", "--against", "net.json", "--leaf", "Linear", "-o", output]) == 0
        capsys.readouterr()
        wrong = failure(capsys, verb, "other.json", "--against", "net.json", "--leaf", "Linaer", "-o", output)
        assert "no node comes from a module of class 'Linaer'" in wrong


@pytest.mark.parametrize("words", [["shard", "net.json", "--mesh", "tp=2"], ["split", "net.json"]])
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("none.json", "cannot read none.json: No such file or directory"),
        ("folder.json", "cannot read folder.json: Is a directory"),
    ],
)
def test_a_plan_that_cannot_be_read(here, capsys, words, plan, message):
    """It is not also said to be invalid."""
    (here / "folder.json").mkdir()
    assert failure(capsys, *words, "--plan", plan) == message


def test_a_plan_that_divides_nothing(here, capsys):
    empty = {"format": "torch_ir.plan", "version": 1, "model": "", "axes": [], "stages": []}
    (here / "one.json").write_text(json.dumps(empty))
    message = "one.json is a plan for one device: there is nothing to divide"
    assert failure(capsys, "shard", "net.json", "--plan", "one.json") == message
    (here / "none.json").write_text("{}")
    assert failure(capsys, "shard", "net.json", "--plan", "none.json", "--mesh", "tp=2").startswith(
        "nothing would be divided over tp=2"
    )


def test_a_plan_of_no_known_kind(here, capsys):
    message = failure(capsys, "shard", "net.json", "--plan", "none.toml", "--mesh", "tp=2")
    assert message.startswith(
        "--plan 'none.toml' is neither a .json file, nor a folder with a config.json, nor a model"
    )


def test_a_recipe_that_is_missing_is_named_once(here, capsys):
    message = failure(capsys, "quantize", "net.json", "--recipe", "none.toml")
    assert message == "cannot read none.toml: No such file or directory"


@pytest.mark.parametrize("words", [["info"], ["cost"], ["check"], ["optimize"], ["run", "--weights", "random"]])
def test_an_empty_file_name(here, capsys, words):
    assert failure(capsys, *words, "") == "the name of a file is empty"


@pytest.mark.parametrize(
    "words",
    [
        ["extract", "net.py:make", "--input", "2x4"],
        ["optimize", "net.json"],
        ["quantize", "net.json", "--recipe", "int8"],
        ["convert", "net.json"],
        ["draw", "net.json"],
        ["explore", "net.json"],
        ["memory", "net.json"],
        ["plan", "net.json", "--devices", "2", "--memory", "1GB"],
    ],
)
def test_a_folder_in_place_of_the_output_is_refused_first(here, capsys, words, monkeypatch):
    """Before anything is captured or computed."""
    monkeypatch.setattr("torch_ir.cli.verb.load_graph", lambda path: pytest.fail("the graph was read"))
    assert failure(capsys, *words, "-o", "folder") == "folder is a folder; -o names a file"


def test_llm_of_what_is_not_a_language_model(here, capsys):
    assert failure(capsys, "llm", "none.json") == "no such file: none.json; to capture a model, add -o FILE"
    message = failure(capsys, "llm", "net.json")
    assert message == "net.json is not the graph of a language model; torch-ir llm MODEL -o FILE captures one"


def test_where_weights_are_dequantised_is_checked(here, capsys):
    """It was ignored for models without quantised weights."""
    with pytest.raises(SystemExit):
        main(["extract", "net.py:make", "--input", "2x4", "-o", "out.json", "--dequantize", "layr"])
    assert "unknown choice 'layr'; did you mean 'layer'?" in capsys.readouterr().err


def test_a_number_of_nodes_to_draw_is_not_negative(here, capsys):
    assert failure(capsys, "draw", "net.json", "--max-nodes", "-3") == "--max-nodes must be at least 0, not -3"


@pytest.mark.parametrize(
    "architectures", [5, [[1]], ["logging"], ["pipeline"], ["GPT2Config"], ["AutoConfig"], {"a": 1}]
)
def test_architectures_that_are_no_models(tmp_path: Path, architectures: Any) -> None:
    """The usual model of the type is built where a configuration names anything but a class of models."""
    settings = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 4, "vocab_size": 8, "n_positions": 4}
    (tmp_path / "config.json").write_text(json.dumps({**settings, "architectures": architectures}))
    try:
        config, name = load_config(str(tmp_path))
    except CommandError as error:
        problem = str(error)
    else:
        problem = f"architectures: {model_class(config, name).__name__}"
    # some versions of transformers check the field themselves
    assert problem.endswith("architectures: AutoModelForCausalLM") or "error for field 'architectures': " in problem
