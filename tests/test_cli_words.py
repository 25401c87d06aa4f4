"""Words and numbers of the command line: file types, plural forms, units, sizes, errors in JSON, narrow tables."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import torch_ir
from tests.command_line import failure
from tests.graphs import mlp
from torch_ir.cli import main
from torch_ir.golden import compare_golden, write_golden
from torch_ir.ir.text.amounts import count, duration, plural
from torch_ir.ir.text.text_table import aligned


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    mlp().save("mlp.json")
    batch = torch.export.Dim("batch")
    model = nn.Linear(4, 4).eval()
    torch_ir.extract_ir(model, (torch.ones(3, 4),), strict=False, dynamic_shapes=({0: batch},)).save("open.json")
    return tmp_path


def test_numbers() -> None:
    """A billion of parameters is B, a time has a unit that fits, and one is not plural."""
    assert (count(70_553_706_496), count(12), count("4*batch")) == ("70.6 B", "12", "4*batch")
    assert (duration(2.68), duration(2.68e-3)) == ("2.68 s", "2.68 ms")
    assert (plural(1, "node"), plural(0, "node"), plural(1200, "node")) == ("1 node", "0 nodes", "1,200 nodes")


def test_a_narrow_table_names_the_columns_that_it_drops() -> None:
    rows = [["module", "FLOPs", "share"], ["layer", "12 G", "50 %"]]
    assert aligned(rows, width=19, least=[2]) == ["(too narrow for: share)", "module  FLOPs", "layer    12 G"]
    assert aligned(rows, width=30, least=[2])[0].split() == rows[0]


def test_broken_json_is_placed_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.json").write_text('{"format": "torch')
    told = failure(capsys, "info", "broken.json")
    assert "Unterminated string starting at line 1, column 12" in told


@pytest.mark.parametrize("verb", ["cost", "explore", "draw"])
def test_one_option_for_open_sizes(verb: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--dim`, also where a graph file is given; a range is not a value."""
    words = {"draw": ["--heat", "flops", "-o", "x.dot"], "explore": ["-o", "x.html"], "cost": ["--json"]}[verb]
    assert main([verb, "open.json", "--dim", "batch=8", *words]) == 0
    if verb == "cost":
        assert json.loads(capsys.readouterr().out)["total"]["flops"] == 2 * 8 * 4 * 4


def test_open_sizes_of_two_graphs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "open.json", "open.json", "--dim", "batch=8", "--json"]) == 0
    (cost,) = json.loads(capsys.readouterr().out)["costs"]
    assert "batch" not in json.dumps(cost)


def test_errors_are_json_where_results_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout, with the class and what programs branch on; the line for people stays on stderr."""
    assert main(["info", "nothing.json", "--json"]) == 1
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["type"], error["message"] in err) == ("MissingFileError", True)
    Path("bad.json").write_text('{"format": "torch-ir", "version": 1, "nodes": 3}')
    assert main(["cost", "bad.json", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["rule"].startswith("R")
    with pytest.raises(SystemExit):
        main(["cost", "mlp.json", "--json", "--by", "ops"])
    out, err = capsys.readouterr()
    message = "argument --by: unknown choice 'ops'; did you mean 'op'?"
    assert json.loads(out)["error"] == {"type": "UsageError", "message": message}
    assert err.endswith(f"torch-ir cost: error: {message}\n")


def test_pictures_in_pdf(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PDF is written, and formats that cannot be are refused, not written as text under that name."""
    assert "cannot draw x.jpg; expected .svg, .png, .pdf" in failure(capsys, "draw", "mlp.json", "-o", "x.jpg")
    assert "use `explore`" in failure(capsys, "draw", "mlp.json", "-o", "x.html")
    assert not Path("x.jpg").exists()
    pytest.importorskip("pygraphviz")
    assert main(["draw", "mlp.json", "-o", "x.pdf"]) == 0
    assert Path("x.pdf").read_bytes().startswith(b"%PDF-")


def test_a_file_that_is_no_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`extract` says what it is, and how weights are used."""
    model = nn.Linear(2, 2)
    torch.save(model.state_dict(), "weights.pt")
    torch.save(model, "whole.pt")
    assert "weights.pt holds weights (a state dict), not a model" in failure(capsys, "extract", "weights.pt")
    Path("checkpoint").mkdir()
    assert "the folder checkpoint has no config.json" in failure(capsys, "extract", "checkpoint")
    told = failure(capsys, "extract", "whole.pt")
    assert "whole.pt is a pickled module, which runs code when it is loaded" in told
    assert "net.py:Net --input ... --weights" in told
    assert "mlp.json is a graph file already" in failure(capsys, "extract", "mlp.json")
    Path("notes.txt").write_text("hello")
    assert "notes.txt is not a model; write it as net.py:Net" in failure(capsys, "extract", "notes.txt")


@pytest.mark.parametrize(("place", "byte"), [(6, 1), (8, 99), (60, 255)])
def test_a_damaged_archive_that_is_no_model(
    place: int, byte: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Encrypted, of an unknown compression, or with a wrong checksum."""
    with zipfile.ZipFile("weights.pt", "w") as archive:
        archive.writestr("weights/data.pkl", b"data" * 100)
    data = bytearray(Path("weights.pt").read_bytes())
    data[place] = byte
    if place < 10:  # once more in the directory of the archive
        data[data.index(b"PK\x01\x02") + place + 2] = byte
    Path("weights.pt").write_bytes(data)
    assert "weights.pt is a zip archive that cannot be read, not a model" in failure(capsys, "extract", "weights.pt")


def test_the_side_file_of_onnx_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    model = nn.Linear(600, 600).eval()
    torch_ir.extract_ir(model, (torch.ones(1, 600),), strict=False).save("wide.json")
    assert main(["convert", "wide.json", "-o", "wide.onnx", "-w", "random"]) == 0
    (side,) = here.glob("wide.onnx.weights-*.safetensors")
    assert capsys.readouterr().out == f"wide.onnx, with data in {side.name}; keep them together\n"
    assert main(["convert", "wide.json", "-o", "wide.onnx", "-w", "random", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["side_files"] == [side.name]


def test_dumps_in_half_precision(here: Path) -> None:
    """Compared with the tolerance of float16, not of the pack; how close they are is said in dB and as a cosine."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).eval()
    x = torch.randn(4, 16)
    ir = torch_ir.extract_ir(model, (x,), strict=False)
    write_golden(ir, model, (x,), "pack")
    hidden = model[0](x).detach()
    right = {"linear": hidden, "tanh": hidden.tanh()}
    save_file({name: value.half() for name, value in right.items()}, "half.safetensors")
    found = compare_golden("pack", "half.safetensors")
    assert found.is_equal
    assert min(found.sqnr.values()) > 60
    assert min(found.cosine.values()) == pytest.approx(1, abs=1e-6)
    assert "with the tolerance of float16" in str(found)
    assert "lowest SQNR " in str(found)
    save_file({name: value.half().float() for name, value in right.items()}, "rounded.safetensors")
    assert not compare_golden("pack", "rounded.safetensors").is_equal
    save_file({"linear": hidden.half(), "tanh": hidden.sin().half()}, "wrong.safetensors")
    wrong = compare_golden("pack", "wrong.safetensors")
    assert wrong.differing == ["tanh"]
    assert wrong.sqnr["tanh"] < 30


@pytest.mark.parametrize("name", ["net.onnx", "net.py", "NET.SVG", "weights.pt"])
def test_a_graph_is_not_written_to_a_file_of_another_format(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Before any work; `convert` and the others write these."""
    told = failure(capsys, "optimize", "mlp.json", "-o", name)
    assert told.startswith(
        f"{name} is not a graph file; optimize writes .json, .json.gz, .pb or .ir, and `torch-ir conv"
    )
    assert not Path(name).exists()


@pytest.mark.parametrize("name", ["page.json", "page.pb"])
def test_a_page_is_not_written_to_a_graph_file(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    told = failure(capsys, "explore", "mlp.json", "-o", name)
    assert told == f"{name} is the name of a graph file; explore writes a page, such as model.html"
    assert not Path(name).exists()
