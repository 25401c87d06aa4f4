"""Every command with an unwritable stdout: a closed pipe, a closed stream, a full disk.

What a command writes to files is complete all the same, and nothing but one line about a full disk is on stderr.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torch_ir
from torch_ir.analysis import load_device
from torch_ir.cli.dispatch import _GROUPS, main
from torch_ir.errors import ClosedPipeError
from torch_ir.llm import extract_llm

NET = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)
"""
TARGET = """\
from torch_ir import Target
npu = Target("npu")

@npu.lowers("aten.linear.default", "aten.relu.default")
def lower(node):
    print("lowering " + node.name + " " + "-" * 70_000)  # more than any buffer holds
    return {"kind": node.op_type}
"""
CONTRACT = """\
ops = ["aten.relu", "aten.linear"]
"""
SHOWN = {
    "extract": ["net.py:Net", "-i", "1x8", "-o", "extracted.json"],
    "llm": ["llm.json"],
    "train-step": ["net.py:Net", "-i", "2x8", "--target", "2x8", "--loss", "mse_loss", "-o", "step.json"],
    "info": ["net.json"],
    "ops": ["net.json", "--json"],
    "draw": ["net.json"],
    "explore": ["net.json", "-o", "page.html"],
    "cost": ["net.json"],
    "memory": ["net.json", "-o", "planned.json"],
    "diff": ["net.json", "net.json"],
    "check": ["net.json"],
    "optimize": ["net.json", "--explain", "", "-o", "better.json"],
    "quantize": ["net.json", "--recipe", "int8"],
    "sensitivity": ["net.json", "--weights", "random"],
    "passes": [],
    "run": ["net.json", "-w", "random", "-o", "results.pt"],
    "weights": ["check", "net.json", "net.pt"],
    "verify": ["net.json", "net.py:Net"],
    "golden": ["net.json", "-w", "random", "-o", "new_pack"],
    "compare": ["pack", "pack/values-00001.safetensors"],
    "bench": ["net.json", "--repeat", "1"],
    "convert": ["net.json", "-o", "net.pb", "--json"],
    "lower": ["net.json", "--target", "target.py:npu", "--log", "-o", "lowered.json"],
    "coverage": ["net.json", "--target", "npu.toml", "--no-decompose"],
    "plan": ["net.json", "--devices", "2", "--memory", "1GB"],
    "shard": ["net.json", "--mesh", "tp=2", "--plan", "plan.json", "-o", "rank.json"],
    "split": ["net.json", "--stages", "2", "-o", "pipeline.json"],
    "sweep": ["models.txt", "-o", "swept", "--steps", "extract"],
    "doctor": ["python"],
    "calibrate": ["--minutes", "0.001", "--no-compiler", "-o", "device.json"],
    "completion": ["bash"],
}
FAST = ["info", "lower"]  # in a separate process, where the interpreter itself exits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its graph, and the input files of commands."""
    made = tmp_path_factory.mktemp("pipes")
    (made / "net.py").write_text(NET)
    (made / "target.py").write_text(TARGET)
    (made / "npu.toml").write_text(CONTRACT)
    (made / "plan.json").write_text('{"layers.0.0": "colwise"}')
    (made / "models.txt").write_text("net.py:Net -i 1x8\n")
    before, path = os.getcwd(), list(sys.path)
    os.chdir(made)
    try:
        assert main(["extract", "net.py:Net", "-i", "1x8", "-o", "net.json"]) == 0
        torch.save(torch_ir.random_weights(torch_ir.IR.load("net.json")), "net.pt")
        assert main(["golden", "net.json", "-w", "random", "-o", "pack"]) == 0
        extract_llm(_tiny_llama()).save("llm.json")
    finally:
        os.chdir(before)
        sys.path[:] = path
        sys.modules.pop("net", None)
    return made


def _tiny_llama() -> object:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=50,
        max_position_embeddings=32,
    )  # fmt: skip


@pytest.fixture
def run(programs: Path | None, folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command with a given stdout; stderr is captured."""

    def started(*words: str, stdout: int, fresh: bool = False) -> subprocess.CompletedProcess[str]:
        is_fresh = fresh or programs is None
        start = [sys.executable, "-m", "torch_ir"] if is_fresh else [str(programs / "torch-ir")]
        more = {"PYTHONPATH": str(Path(torch_ir.__file__).parents[1])} if is_fresh else {}  # with it, nothing is forked
        environment = {**os.environ, **more}
        return subprocess.run(
            [*start, *words], cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
        )

    return started


def without_reader() -> int:
    """The end of a pipe that nothing reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def written(folder: Path, verb: str) -> Path | None:
    words = SHOWN[verb]
    return folder / words[words.index("-o") + 1] if "-o" in words else None


def test_every_verb_is_tried() -> None:
    assert {verb for verbs in _GROUPS.values() for verb in verbs} == set(SHOWN)


@pytest.mark.parametrize("verb", SHOWN)
def test_a_closed_pipe_ends_a_command_quietly(verb, run, folder) -> None:
    """The status is that of SIGPIPE; the output file exists and is complete."""
    stdout = without_reader()
    done = run(verb, *SHOWN[verb], stdout=stdout)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")
    output = written(folder, verb)
    if output is not None:
        assert output.exists()
    if verb == "lower":
        layers = json.loads(output.read_text())["layers"]
        assert {layer["kind"] for layer in layers} == {"aten.linear.default", "aten.relu.default"}
        assert not [layer for layer in layers if "placeholder" in json.dumps(layer)]
    elif verb == "calibrate":
        load_device(output)
    elif output is not None and output.suffix == ".json":
        torch_ir.IR.load(output).check()


@pytest.mark.parametrize("verb", FAST)
def test_python_itself_ends_quietly(verb, run, folder) -> None:
    """Without the fork server: the interpreter's last flush prints nothing either."""
    stdout = without_reader()
    done = run(verb, *SHOWN[verb], stdout=stdout, fresh=True)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["help", "optimize"], ["optimize", "--help"], []])
def test_help_ends_quietly(words, run) -> None:
    stdout = without_reader()
    done = run(*words, stdout=stdout, fresh=True)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["--help"], ["info", "net.json"], ["optimize", *SHOWN["optimize"]]])
def test_a_full_disk_is_one_line(words, run, folder) -> None:
    """Output files are written nevertheless."""
    (folder / "better.json").unlink(missing_ok=True)
    with open("/dev/full", "w") as full:
        done = run(*words, stdout=full.fileno(), fresh=words[0] != "optimize")
    assert (done.returncode, done.stderr) == (
        1,
        "torch-ir: error: cannot write to stdout: No space left on device\n",
    )
    assert (folder / "better.json").exists() == (words[0] == "optimize")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("info net.json", 0, ""),
        ("--help", 0, ""),
        ("diff net.json net.json", 0, ""),
        ("draw net.json -o picture.dot", 0, ""),
        ("info nothing.json", 1, "torch-ir: error: cannot read nothing.json: No such file or directory\n"),
        (
            "extract net.py:Net -i 1x8 -o -",
            1,
            "torch-ir: error: - is stdout, which is closed; name a file: -o NAME\n",
        ),
    ],
)
def test_a_closed_stdout_is_like_the_null_device(words, status, told, folder) -> None:
    """`>&-`: there is no stream, and none of our files may get its descriptor."""
    environment = {**os.environ, "PYTHONPATH": str(Path(torch_ir.__file__).parents[1])}
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m torch_ir {words} >&-'],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (status, told)


def test_a_closed_stderr_does_not_send_errors_to_stdout(folder) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m torch_ir info nothing.json 2>&-'],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(torch_ir.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_graph_that_nobody_reads_is_a_typed_error(run, folder) -> None:
    """From Python, saving to stdout whose reader has left is a SerializationError that is a BrokenPipeError, too."""
    assert issubclass(ClosedPipeError, BrokenPipeError)
    stdout = without_reader()
    done = run("extract", "net.py:Net", "-i", "1x8", "-o", "/dev/stdout", stdout=stdout)
    os.close(stdout)
    assert done.returncode == 141
    code = "import torch_ir; torch_ir.IR.load('net.json').save('/dev/stdout')"
    stdout = without_reader()
    saved = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(torch_ir.__file__).parents[1])},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(stdout)
    assert "ClosedPipeError: cannot write /dev/stdout: its reader has closed it" in saved.stderr
