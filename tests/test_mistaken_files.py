"""Files that are not graphs: a one-line error identifies each."""

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.command_line import failure
from tests.graphs import mlp
from tests.refusals import without_digest
from torch_ir import IR, Target
from torch_ir.cli import main
from torch_ir.errors import MissingFileError, MistakenFileError, SerializationError
from torch_ir.formats import load_protobuf, to_protobuf

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
NO_GRAPH = "is JSON, but not a torch-ir graph: "


def checkpoint() -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": torch.ones(2)}, buffer)
    return buffer.getvalue()


STRANGERS = [
    (b"", "is empty"),
    (b" \n", "contains only whitespace"),
    (PNG, "is a PNG picture, not a torch-ir graph"),
    (b"<!doctype html><p>no</p>", "is HTML, SVG or other XML, not a torch-ir graph"),
    (checkpoint(), "is a zip archive, as checkpoints in .pt and programs in .pt2 are, not a torch-ir graph"),
    (save({"x": torch.ones(2)}), "is a safetensors file, which holds weights, not a torch-ir graph"),
    (b"{}", f"{NO_GRAPH}it has no 'format' and no 'nodes'"),
    (b'{"name": "left-pad", "version": "1.3.0"}', f"{NO_GRAPH}it has no 'format' and no 'nodes'"),
    (b'{"format": "onnx", "version": 1}', f"{NO_GRAPH}its 'format' is 'onnx'"),
    (b'{"format": ["x"]}', f"{NO_GRAPH}its 'format' is ['x']"),
    (
        json.dumps(Target("npu").lower(mlp()).to_dict()).encode(),
        f"{NO_GRAPH}it is the layers of a target, which `torch-ir lower` wrote",
    ),
    (b'{"metadata": {}, "weight_map": {}}', f"{NO_GRAPH}it is the index of a checkpoint"),
    (b'{"model_type": "llama"}', f"{NO_GRAPH}it is a configuration of transformers"),
    (b"[1, 2]", f"{NO_GRAPH}it holds a list"),
    (b"3", f"{NO_GRAPH}it holds one value"),
]


@pytest.mark.parametrize("name", ["model.json", "model.pb"])
@pytest.mark.parametrize(("content", "told"), STRANGERS)
def test_what_it_is_instead_is_said(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MistakenFileError) as caught:
        load_protobuf(path) if path.suffix == ".pb" else IR.load(path)
    assert str(caught.value) == f"{path} {told}"
    assert caught.value.rule  # by which the reader refused it


def test_an_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch\xff")
    with pytest.raises(MistakenFileError, match="is an ONNX file, which torch_ir writes but does not read"):
        IR.load(tmp_path / "net.onnx")


def test_a_graph_under_the_name_of_the_other_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(to_protobuf(mlp()))
    with pytest.raises(SerializationError, match=r"a\.json is a graph in protobuf; its name must end in \.pb or"):
        IR.load(tmp_path / "a.json")
    (tmp_path / "a.pb").write_text(mlp().to_json())
    with pytest.raises(SerializationError, match=r"a\.pb is a graph in JSON; its name must not end in \.pb or"):
        load_protobuf(tmp_path / "a.pb")


def test_a_graph_with_a_mistake_in_it_is_told_the_mistake(tmp_path: Path) -> None:
    """So is text that is not JSON, or that lacks part of a graph."""
    document = json.loads(without_digest(mlp().to_json()))
    mistakes = {
        "$: not JSON: Expecting value at line 1, column 1": "hello",
        "$: 'nodes' is missing": json.dumps({"graph_inputs": []}),
        "$.version: the file has format version 2": json.dumps({**document, "version": 2}),
        "$: unknown key 'sauce'": json.dumps({**document, "sauce": 1}),
    }
    for told, text in mistakes.items():
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(SerializationError) as caught:
            IR.load(tmp_path / "a.json")
        assert str(caught.value).startswith(told)
    with pytest.raises(MissingFileError, match="No such file"):
        IR.load(tmp_path / "b.json")


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """For every command, and whatever the file's name."""
    monkeypatch.chdir(tmp_path)
    Path("picture.png").write_bytes(PNG)
    Path("empty.json").touch()
    Path("folder").mkdir()
    assert failure(capsys, "info", "picture.png") == "picture.png is a PNG picture, not a torch-ir graph [rule R1]"
    assert failure(capsys, "cost", "empty.json") == "empty.json is empty [rule R3]"
    assert failure(capsys, "draw", "folder") == "folder is a folder, not a graph file"
    assert (
        failure(capsys, "draw", "empty.jsn") == "'empty.jsn' is neither a file nor a model; did you mean 'empty.json'?"
    )
    assert failure(capsys, "diff", "empty.jsn", "b") == "empty.jsn is not a graph file; did you mean 'empty.json'?"
    assert failure(capsys, "info", "none.json") == "cannot read none.json: No such file or directory"
    assert failure(capsys, "info", "folder/none.json") == "cannot read folder/none.json: No such file or directory"
    told = "cannot read emty.json: No such file or directory; did you mean 'empty.json'?"
    assert failure(capsys, "info", "emty.json") == told
    assert main(["check", "empty.json"]) == 1
    assert capsys.readouterr().out == "R3  empty.json is empty\n"


@pytest.mark.parametrize("verb", ["run --weights random", "convert -o x.onnx", "diff other.json", "check"])
@pytest.mark.parametrize("model", ["net.py:Net", "net.py", "hf:llama"])
def test_a_command_that_takes_a_graph_says_how_to_capture_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, verb: str, model: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("from torch.nn import Identity as Net")
    name, *options = verb.split()
    told = f"{model} is not a graph file; a model is captured first: torch-ir extract {model} -o graph.json"
    assert failure(capsys, name, model, *options) == told
