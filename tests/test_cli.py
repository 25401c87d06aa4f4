"""The command line: what it prints, how it fails, and that looking at a graph never imports torch."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ir
from tests.test_draw import DOCUMENTED, mlp
from torch_ir.cli import info, main
from torch_ir.cli.dynamic import choose_sizes
from torch_ir.cli.inputs import DimRange, InputSpec, parse_dims, parse_input, parse_inputs
from torch_ir.cli.tensors import load_tensor, random_tensor
from torch_ir.errors import CommandError

ROOT = Path(__file__).parents[1]
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
"""
NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids, mask=None, *, scale=None):
        hidden = self.embed(ids)
        hidden = hidden if mask is None else hidden * mask[..., None]
        return self.head(hidden if scale is None else hidden * scale)

class Other(Net):
    def forward(self, ids, mask=None, *, scale=None):
        return super().forward(ids, mask, scale=scale) + 1

def broken():
    raise ValueError("no such size\\nsecond line")

def number():
    return 3

ready = nn.Linear(4, 2)
seven = 7
"""


def command(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "torch_ir", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def file(tmp_path):
    mlp().save(tmp_path / "model.json")
    return str(tmp_path / "model.json")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a user's models in it, as the current one."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("net", "net_file", "bad_import", "bad_syntax"):
        sys.modules.pop(name, None)


def failure(capsys, *arguments: str) -> str:
    """The one line that a failing command prints."""
    assert main(list(arguments)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("torch-ir: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("torch-ir: error: ").rstrip("\n")


def test_info_prints_the_documented_text(file, capsys, tmp_path):
    assert main(["info", file]) == 0
    assert capsys.readouterr().out == INFO
    assert main(["info", file, "--json"]) == 0
    text = capsys.readouterr().out
    assert list(json.loads(text)) == [
        "model_name", "num_nodes", "num_inputs", "num_outputs", "num_weights", "total_parameters", "input_shapes",
        "output_shapes", "op_distribution",
    ]  # fmt: skip
    assert json.loads(text)["op_distribution"] == {"aten.linear.default": 2, "aten.relu.default": 1}
    assert main(["info", file, "--json", "-o", str(tmp_path / "new" / "info.json")]) == 0
    assert (tmp_path / "new" / "info.json").read_text() + "\n" == text


def test_visualize_prints_or_writes(file, capsys, tmp_path):
    assert main(["visualize", file]) == 0
    assert capsys.readouterr().out == DOCUMENTED + "\n"
    assert main(["visualize", file, "--max-nodes", "1", "--no-weights"]) == 0
    assert "2 more nodes" in capsys.readouterr().out
    assert main(["visualize", file, "-o", str(tmp_path / "a.mmd")]) == 0
    assert (tmp_path / "a.mmd").read_text() == DOCUMENTED
    assert main(["visualize", file, "-o", str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_looking_never_imports_torch(file):
    code = (
        "import sys\nfrom torch_ir.cli.main import main\n"
        "try:\n    status = main(sys.argv[1:])\nexcept SystemExit as end:\n    status = end.code\n"
        "sys.exit(status or 100 * ('torch' in sys.modules))"
    )
    for arguments in (["--help"], ["extract", "--help"], ["info", file], ["visualize", file]):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True)
        print(f"{arguments[0]}: {time.perf_counter() - start:.3f} s")
        assert done.returncode == 0, done.stderr


def test_statuses_and_streams(file, tmp_path):
    version = command("--version")
    assert (version.returncode, version.stdout) == (0, f"torch-ir {torch_ir.__version__}\n")
    nothing = command()
    assert nothing.returncode == 2
    assert "visualize" in nothing.stdout
    wrong = command("info")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("usage: torch-ir info")
    missing = command("info", "no such file.json")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "torch-ir: error: cannot read no such file.json: No such file or directory\n"


def test_a_reader_that_leaves_is_no_error(file):
    pipe = subprocess.Popen(
        [sys.executable, "-m", "torch_ir", "visualize", file],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.close()
    assert pipe.stderr.read() == b""
    pipe.stderr.close()
    pipe.wait()


def test_interrupting_gives_130(file, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupted)
    assert main(["info", file]) == 130


def test_both_names_work(file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/somewhere/pytorch-ir"])
    assert main(["info", "nowhere.json"]) == 1
    assert capsys.readouterr().err.startswith("pytorch-ir: error: ")


def test_bad_files_are_named(capsys, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json: $: not JSON" in failure(capsys, "info", str(tmp_path / "bad.json"))
    assert failure(capsys, "visualize", str(tmp_path)) == f"cannot read {tmp_path}: Is a directory"


@pytest.mark.parametrize(
    "verb",
    ["extract", "llm", "info", "convert", "visualize", "coverage", "lower", "run", "verify", "golden", "compare"],
)
def test_every_verb_shows_examples(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    assert f"examples:\n  torch-ir {verb} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "name", "dtype", "shape"),
    [
        ("float32[1,3,224,224]", None, "float32", (1, 3, 224, 224)),
        ("x=f32[1,3]", "x", "float32", (1, 3)),
        ("x:1x3x224x224", "x", "float32", (1, 3, 224, 224)),
        ("1x3xbf16", None, "bfloat16", (1, 3)),
        ("1x3", None, "float32", (1, 3)),
        ("8", None, "float32", (8,)),
        ("ids=i64[batch,seq]", "ids", "int64", ("batch", "seq")),
        ("batchx8", None, "float32", ("batch", 8)),
        ("i64[b,s]", None, "int64", ("b", "s")),
        ("bool[]", None, "bool", ()),
        ("x = c64[ 1, 2 ]", "x", "complex64", (1, 2)),
    ],
)
def test_input_specs(text, name, dtype, shape):
    assert parse_input(text) == InputSpec(text, name, dtype, shape)


def test_input_specs_with_bounds_and_files():
    assert parse_input("i64[1,8]<100").below == 100
    assert parse_input("1x8xi32<7") == InputSpec("1x8xi32<7", None, "int32", (1, 8), 7)
    assert parse_input("x=@some/file.npy") == InputSpec("x=@some/file.npy", "x", file="some/file.npy")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("f33[1,2]", "'f32[1,2]'"),
        ("F32[1,2]", "'f32[1,2]'"),
        ("f32(1,2)", "'f32[1,2]'"),
        ("f32[1,2", "'f32[1,2]'"),
        ("1,3,224", "'1x3x224'"),
        ("f32[1x3]", "'f32[1,3]'"),
        ("1x3xf33", "'1x3xf32'"),
        ("torch.float16[1]", "'float16[1]'"),
        ("x:[1,3]:float32", "'x:float32[1,3]'"),
        ("f32[-1,3]", "f32[batch,3]"),
        ("f32", "f32[]"),
        ("", "1x3x224x224"),
        ("x=@", "file name"),
        ("f32[2]<3", "whole numbers"),
    ],
)
def test_wrong_specs_name_the_nearest_fix(text, fix):
    with pytest.raises(CommandError) as raised:
        parse_input(text)
    assert fix in str(raised.value)
    assert "\n" not in str(raised.value)


def test_dims():
    assert parse_dims(["a=4", "b=1..32", "c=2..", "d=..9"]) == {
        "a": DimRange(4, 4), "b": DimRange(1, 32), "c": DimRange(2), "d": DimRange(None, 9)
    }  # fmt: skip
    for wrong in ("a", "a=", "a=-1", "a=5..2", "=3"):
        with pytest.raises(CommandError, match="size"):
            parse_dims([wrong])
    with pytest.raises(CommandError, match="twice"):
        parse_dims(["a=1", "a=2"])
    with pytest.raises(CommandError, match="twice"):
        parse_inputs(["x=1x2", "x=1x3"])


def test_capture_sizes_are_in_range_and_distinct():
    specs = parse_inputs(["f32[batch,seq,8,fixed]", "f32[few]", "f32[one]"])
    dims = parse_dims(["batch=1..32", "seq=100..", "fixed=1", "few=2..3", "one=0..1"])
    sizes = choose_sizes(specs, dims)
    assert sizes == {"batch": 12, "seq": 100, "fixed": 1, "few": 2, "one": 1}
    with pytest.raises(CommandError, match="did you mean 'batch'"):
        choose_sizes(specs, parse_dims(["bach=3"]))


def test_random_tensors_are_seeded_and_bounded():
    def made(dtype, below=None):
        return random_tensor((64,), dtype, torch.Generator().manual_seed(0), below)

    assert torch.equal(made("float16"), made("float16"))
    assert made("int64").unique().tolist() == [0, 1]
    assert 50 < made("uint8", 100).max() < 100
    assert made("bool").dtype == torch.bool
    assert made("complex64").dtype == torch.complex64


def test_values_come_from_files(tmp_path):
    value = torch.arange(3.0)
    torch.save(value, tmp_path / "a.pt")
    torch.save({"x": value, "y": value + 1}, tmp_path / "two.pt")
    assert torch.equal(load_tensor(parse_input(f"@{tmp_path}/a.pt")), value)
    assert torch.equal(load_tensor(parse_input(f"y=@{tmp_path}/two.pt")), value + 1)
    import numpy

    numpy.save(tmp_path / "a.npy", value.numpy())
    assert torch.equal(load_tensor(parse_input(f"@{tmp_path}/a.npy")), value)
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    for wrong in ("two.pt", "none.pt", "bad.npy"):
        with pytest.raises(CommandError, match=wrong):
            load_tensor(parse_input(f"@{tmp_path}/{wrong}"))


def test_extract_run_verify_with_dynamic_sizes(here, capsys):
    words = ["--input", "ids=i64[batch,seq]", "--input", "mask=f32[batch,seq]", "--dim", "batch=1..32"]
    assert main(["extract", "net.py:Net", *words, "-o", "net.json"]) == 0
    assert capsys.readouterr().out.startswith("Net: 4 nodes, 3 weights, 427 parameters in ")
    ir = torch_ir.IR.load("net.json")
    assert [tensor.shape for tensor in ir.graph_inputs] == [("batch", "seq")] * 2
    assert ir.symbols["batch"].max == 32

    assert "add --dim batch=4" in failure(capsys, "run", "net.json", "--weights", "random")
    assert main(["run", "net.json", "-w", "random", "--input", "ids=i64[2,3]<50", "-o", "out.pt"]) == 0
    assert capsys.readouterr().out.startswith("linear: float32[2, 3, 3] min ")
    assert torch.load("out.pt")["linear"].shape == (2, 3, 3)

    sizes = ["--dim", "batch=4", "--dim", "seq=6"]
    assert main(["verify", "net.json", "net.py:Net", *sizes]) == 0
    assert re.match("Verification PASSED\n  outputs compared: 1 on . sets of inputs", capsys.readouterr().out)
    assert main(["verify", "net.json", "net.py:Net", *sizes, "--no-probe"]) == 0
    assert "sets of inputs" not in capsys.readouterr().out
    assert main(["verify", "net.json", "net.py:Other", *sizes, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_valid"] is False


def test_keyword_inputs_and_json(here, capsys):
    words = ["--input", "scale=f32[]", "--input", "i64[2,5]", "--name", "scaled", "--json"]
    assert main(["extract", "net:Net", *words, "-o", "new/net.json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model_name"], facts["num_inputs"], facts["file"]) == ("scaled", 2, "new/net.json")
    assert facts["file_bytes"] == os.path.getsize("new/net.json")
    assert main(["run", "new/net.json", "--weights", "random", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert (output["name"], output["shape"], output["dtype"]) == ("linear", [2, 5, 3], "float32")
    assert output["min"] <= output["mean"] <= output["max"]


def test_an_instance_and_weights_from_a_file(here, capsys):
    import safetensors.torch as safetensors

    assert main(["extract", "net.py:ready", "--input", "1x4", "-o", "ready.json"]) == 0
    weights = nn.Linear(4, 2).state_dict()
    torch.save({**weights, "spare": torch.zeros(1)}, "spare.pt")
    safetensors.save_file(weights, "good.safetensors")
    assert main(["run", "ready.json", "--weights", "good.safetensors", "-o", "out.safetensors"]) == 0
    assert safetensors.load_file("out.safetensors")["linear"].shape == (1, 2)
    capsys.readouterr()
    assert main(["run", "ready.json", "--weights", "spare.pt"]) == 0
    assert capsys.readouterr().err.startswith("torch-ir: warning: 'spare' is given")
    assert main(["verify", "ready.json", "net.py:ready", "--weights", "good.safetensors"]) == 0
    assert "Missing key" not in capsys.readouterr().err
    assert "does not fit Linear" in failure(capsys, "verify", "ready.json", "net.py:ready", "--weights", "spare.pt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.py:broken"], "building net.py:broken failed: ValueError: no such size (net.py:20)"),
        (["net.py:number"], "net.py:number did not give an nn.Module, but 3"),
        (["net.py:seven"], "net.py:seven is neither a class, nor a function, nor a model, but 7"),
        (["net.py:Nett"], "net.py has no 'Nett'; did you mean 'Net'?"),
        (["nett.py:Net"], "no such file: nett.py"),
        (["nett.models:Net"], "there is no module 'nett' here; for a file, write nett/models.py:..."),
        (["net.py"], "'net.py' does not say which model; write it as package.module:Class or file.py:Class"),
        (
            ["bad_import:Net"],
            "importing bad_import failed: ModuleNotFoundError: No module named 'not_there' (bad_import.py:1)",
        ),
        (["bad_syntax.py:Net"], "running bad_syntax.py failed: SyntaxError: invalid syntax (bad_syntax.py:1)"),
        (["net.py:Net", "--input", "idz=i64[2,3]"], "Net.forward has no argument 'idz'; did you mean 'ids'?"),
        (
            ["net.py:Net"],
            "the --input options do not fit Net.forward(ids, mask, scale): missing a required argument: 'ids'",
        ),
        (["net.py:Net", "--input", "i64[2,3]", "--dim", "batch=2"], "no input has a size 'batch'"),
    ],
)
def test_mistakes_in_extract_are_one_line(here, capsys, arguments, message):
    (here / "bad_import.py").write_text("import not_there\n")
    (here / "bad_syntax.py").write_text("def f(:\n")
    assert failure(capsys, "extract", *arguments, "-o", "x.json") == message
    assert not (here / "x.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dim", "batch=1..3"], "running takes one size for 'batch', not a range: --dim batch=3"),
        (["--dim", "bach=3"], "the graph has no size 'bach'; did you mean 'batch'?"),
        (["--input", "idz=i64[2,3]"], "the graph has no input 'idz'; did you mean 'ids'?"),
        (["--input", "1x2", "--input", "1x2"], "2 inputs are given, but the graph takes 1"),
        (["--input", "@nothing.npy"], "no such file: nothing.npy"),
        (["-o", "out.txt"], "out.txt: outputs are written as .safetensors or .pt"),
        (["--dim", "batch=2", "--input", "f32[batch,3]"], "input 'ids' is float32, the graph takes int64"),
    ],
)
def test_mistakes_in_run_are_one_line(here, capsys, arguments, message):
    assert main(["extract", "net.py:Net", "--input", "i64[batch,3]", "-o", "net.json"]) == 0
    capsys.readouterr()
    assert failure(capsys, "run", "net.json", "--weights", "random", *arguments) == message


def test_weights_that_do_not_fit_are_one_line(here, capsys):
    assert main(["extract", "net.py:Net", "--input", "i64[2,3]", "-o", "net.json"]) == 0
    torch.save({"a": torch.zeros(1)}, "a.pt")
    capsys.readouterr()
    assert "'head.bias' is missing" in failure(capsys, "run", "net.json", "--weights", "a.pt")


def test_the_catalogue_from_a_shell(tmp_path):
    """From the shell, in the folder that holds the package of models."""
    out = str(tmp_path / "mlp.json")
    done = command("extract", "catalogue.mlp:SimpleMLP", "--input", "1x4", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert torch_ir.ir_to_mermaid(torch_ir.IR.load(out)) == DOCUMENTED
