"""Models and inputs on the command line: accepted forms and error messages."""

import json
import os
import re
import sys

import pytest
import torch
from torch import nn

import torch_ir
from tests.command_line import command, failure
from tests.test_draw import DOCUMENTED
from torch_ir.cli import main
from torch_ir.cli.arguments.dynamic_sizes import choose_sizes
from torch_ir.cli.arguments.input_specs import InputSpec, parse_input, parse_inputs
from torch_ir.cli.arguments.input_values import random_tensor
from torch_ir.cli.arguments.size_specs import DimRange, parse_dims
from torch_ir.errors import CommandError

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
pair = lambda: (ready, ready.weight)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a user's models in it, as the current one."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("net", "net_file", "bad_import", "bad_syntax"):
        sys.modules.pop(name, None)


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
        ("f32[2]<3", "integer dtypes"),
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


def test_extract_run_verify_with_dynamic_sizes(here, capsys):
    words = ["--input", "ids=i64[batch,seq]", "--input", "mask=f32[batch,seq]", "--dim", "batch=1..32"]
    assert main(["extract", "net.py:Net", *words, "-o", "net.json"]) == 0
    assert capsys.readouterr().out.startswith("Net: 4 nodes, 3 weights, 427 parameters in ")
    ir = torch_ir.IR.load("net.json")
    assert [tensor.shape for tensor in ir.graph_inputs] == [("batch", "seq")] * 2
    assert ir.symbols["batch"].max == 32

    assert "add --dim batch=8 --dim seq=8" in failure(capsys, "run", "net.json", "--weights", "random")
    assert main(["run", "net.json", "-w", "random", "--input", "ids=i64[2,3]<50", "-o", "out.pt"]) == 0
    assert capsys.readouterr().out.startswith("linear: float32[2, 3, 3] min ")
    assert torch.load("out.pt")["linear"].shape == (2, 3, 3)

    sizes = ["--dim", "batch=4", "--dim", "seq=6"]
    assert main(["verify", "net.json", "net.py:Net", *sizes]) == 0
    assert re.match("Verification PASSED\n  outputs compared: 1 on . sets of inputs", capsys.readouterr().out)
    assert main(["verify", "net.json", "net.py:Net", *sizes, "--no-probe"]) == 0
    assert "sets of inputs" not in capsys.readouterr().out
    assert main(["verify", "net.json", "net.py:Other", *sizes, "--json"]) == 3
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
    assert capsys.readouterr().err.startswith("torch-ir: warning: unexpected weight 'spare'")
    assert main(["verify", "ready.json", "net.py:ready", "--weights", "good.safetensors"]) == 0
    assert "Missing key" not in capsys.readouterr().err
    assert "does not fit Linear" in failure(capsys, "verify", "ready.json", "net.py:ready", "--weights", "spare.pt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.py:broken"], "building net.py:broken failed: ValueError: no such size (net.py:20)"),
        (["net.py:number"], "net.py:number did not return an nn.Module, but 3"),
        (["net.py:pair"], "net.py:pair returned a tuple; return the model alone, and describe its inputs with --input"),
        (["net.py:seven"], "net.py:seven is neither a class, nor a function, nor a model, but 7"),
        (["net.py:Nett"], "net.py has no 'Nett'; did you mean 'Net'?"),
        (["nett.py:Net"], "no such file: nett.py"),
        (["nett.models:Net"], "no module named 'nett'; for a file, write nett/models.py:..."),
        (
            ["net.py"],
            "'net.py' does not name a model; write package.module:Class or file.py:Class; net.py has Net, Other, "
            "broken, number",
        ),
        (
            ["bad_import:Net"],
            "importing bad_import failed: ModuleNotFoundError: No module named 'not_there' (bad_import.py:1)",
        ),
        (["bad_syntax.py:Net"], "running bad_syntax.py failed: SyntaxError: invalid syntax (bad_syntax.py:1)"),
        (
            ["net.py:Net", "--input", "ids=int63[2,3]"],
            "'ids=int63[2,3]' is not an input; did you mean 'ids=int64[2,3]'?",
        ),
        (
            ["net.py:Net", "--input", "idz=i64[2,3]"],
            "Net.forward(ids, mask, scale) has no argument 'idz'; did you mean 'ids'?",
        ),
        (
            ["net.py:Net"],
            'Net.forward(ids, mask=None, *, scale=None) needs inputs; give them, as in --input "ids=f32[1,8]"',
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
        (["--dim", "batch=1..3"], "a run needs one size for 'batch', not a range: --dim batch=3"),
        (["--dim", "bach=3"], "the graph has no symbolic size 'bach'; did you mean 'batch'?"),
        (["--input", "idz=i64[2,3]"], "the graph has no input 'idz'; did you mean 'ids'?"),
        (["--input", "1x2", "--input", "1x2"], "2 inputs given, but the graph has 1"),
        (["--input", "@nothing.npy"], "no such file: nothing.npy"),
        (["-o", "out.txt"], "out.txt: outputs are written as .safetensors or .pt"),
        (["--dim", "batch=2", "--input", "f32[batch,3]"], "input 'ids' is float32, the graph takes int64"),
    ],
)
def test_mistakes_in_run_are_one_line(here, capsys, arguments, message):
    assert main(["extract", "net.py:Net", "--input", "i64[batch,3]", "-o", "net.json"]) == 0
    capsys.readouterr()
    assert failure(capsys, "run", "net.json", "--weights", "random", *arguments) == message


@pytest.mark.parametrize(
    "words",
    [
        ["run", "net.json"],
        ["verify", "net.json", "net.py:Net"],
        ["golden", "net.json", "-o", "pack"],
        ["bench", "net.json"],
    ],
)
def test_weights_that_are_not_there_are_said_first(here, capsys, words):
    """Before sizes are required, which would be useless."""
    assert main(["extract", "net.py:Net", "--input", "i64[batch,3]", "-o", "net.json"]) == 0
    capsys.readouterr()
    assert failure(capsys, *words, "--weights", "nope.pt") == "no such file: nope.pt"


def test_weights_that_do_not_fit_are_one_line(here, capsys):
    assert main(["extract", "net.py:Net", "--input", "i64[2,3]", "-o", "net.json"]) == 0
    torch.save({"a": torch.zeros(1)}, "a.pt")
    capsys.readouterr()
    assert "'head.bias' is missing" in failure(capsys, "run", "net.json", "--weights", "a.pt")


def test_the_catalogue_from_a_shell(tmp_path, programs):
    """From the shell, in the folder with the package of models."""
    out = str(tmp_path / "mlp.json")
    done = command("extract", "catalogue.mlp:SimpleMLP", "--input", "1x4", "-o", out, programs=programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert torch_ir.ir_to_mermaid(torch_ir.IR.load(out)) == DOCUMENTED


@pytest.mark.parametrize(
    "words",
    [
        ["draw", "net.json", "-o", "net.json"],
        ["explore", "net.json", "-o", "./net.json"],
        ["info", "net.json", "--json", "-o", "net.json"],
        ["draw", "net.json", "--against", "other.json", "-o", "other.json"],
        ["extract", "net.py:Net", "-i", "ids=i64[1,4]", "-o", "net.py"],
        ["optimize", "net.py:Net", "-i", "ids=i64[1,4]", "-o", "net.py"],
        ["run", "net.json", "--weights", "weights.safetensors", "-o", "weights.safetensors"],
    ],
    ids=" ".join,
)
def test_no_command_writes_over_what_it_reads(here, capsys, words):
    """A drawing, page, summary or graph never overwrites an input file of the command."""
    for name in ("net.json", "other.json", "weights.safetensors"):
        (here / name).write_text(name)
    before = {path: path.read_bytes() for path in here.iterdir()}
    assert (
        failure(capsys, *words)
        == f"{words[-1]} is an input of this command and would be overwritten; write to another file"
    )
    assert {path: path.read_bytes() for path in here.iterdir()} == before


def test_a_dash_is_stdout_and_never_a_file(here, capsys):
    """Commands that print without -o accept it; commands that only write files raise an error."""
    assert main(["extract", "net.py:ready", "--input", "1x4", "-o", "net.json"]) == 0
    capsys.readouterr()
    for words in (["info", "net.json"], ["draw", "net.json"]):
        assert main(words) == main([*words, "-o", "-"]) == 0
        printed = capsys.readouterr().out
        assert printed[: len(printed) // 2] * 2 == printed
    told = "optimize does not write to stdout; name a file: -o NAME"
    assert failure(capsys, "optimize", "net.json", "-o", "-") == told
    assert not (here / "-").exists()


def test_a_graph_may_take_the_place_of_a_graph(here):
    """`optimize` and `convert` write the better, or same, graph into the file that they read."""
    assert main(["extract", "net.py:Net", "-i", "ids=i64[1,4]", "-o", "net.json.gz"]) == 0
    assert main(["convert", "net.json.gz", "-o", "net.json.gz"]) == 0
    assert main(["optimize", "net.json.gz", "-o", "net.json.gz"]) == 0
    assert torch_ir.load_ir("net.json.gz").model_name == "Net"
