"""`torch-ir convert` to formats of other tools; each file computes the same as the graph."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_ir import IR, execute_ir, extract_ir, load_ir
from torch_ir.cli.dispatch import main

BATCH = torch.export.Dim("batch", min=2, max=8)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A folder with `net.json`, whose batch size varies, and `net.pt`."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    extract_ir(model, (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: BATCH},), strict=False).save("net.json")
    torch.save(model.state_dict(), "net.pt")
    return model


def same(function: Any, model: nn.Module) -> None:
    with torch.no_grad():
        for size in (2, 5):
            x = torch.randn(size, 3, 8, 8)
            result: Tensor = function(x)
            torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)


def test_to_pt2(model: nn.Module) -> None:
    """torch.export's format, with dynamic sizes; it loads as a graph."""
    assert main(["convert", "net.json", "-o", "net.pt2", "--weights", "net.pt"]) == 0
    same(torch.export.load("net.pt2").module(), model)


def test_to_text_and_back(model: nn.Module) -> None:
    """Every command reads the text form, whatever the file's name; it omits origins."""
    assert main(["convert", "net.json", "-o", "net.ir"]) == 0
    assert Path("net.ir").read_text() == IR.load("net.json").to_text()
    assert main(["convert", "net.ir", "-o", "again.json"]) == 0
    assert main(["diff", "net.json", "again.json"]) == 0
    Path("net.txt").write_text(Path("net.ir").read_text())
    assert main(["check", "net.txt"]) == 0
    same(lambda x: execute_ir(load_ir("net.txt"), (x,), model.state_dict())[0], model)


def test_to_python(model: nn.Module) -> None:
    assert main(["convert", "net.json", "-o", "net_graph.py"]) == 0
    net = runpy.run_path("net_graph.py")["Net"]()
    net.load_state_dict(model.state_dict(), assign=True)
    same(net, model)


def test_to_onnx(model: nn.Module) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="torch-ir[onnx] is not installed")
    pytest.importorskip("onnxscript", reason="torch-ir[onnx] is not installed")
    assert main(["convert", "net.json", "-o", "net.onnx", "--weights", "net.pt"]) == 0
    session = onnxruntime.InferenceSession("net.onnx")
    same(lambda x: torch.from_numpy(session.run(None, {"input": x.numpy()})[0]), model)


def test_to_mlir(model: nn.Module) -> None:
    """Without weights, which are named."""
    assert main(["convert", "net.json", "-o", "net.mlir"]) == 0
    assert '#flow.parameter.named<"model"::"0.weight">' in Path("net.mlir").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["net.pt2"], "a .pt2 file holds weights: give --weights FILE, or --weights random"),
        (["net.mlir", "--weights", "net.pt"], "--weights is for .onnx and .pt2; .mlir files hold no weights"),
        (
            ["net.gz"],
            "net.gz must end in .json, .json.gz, .pb, .binpb, .ir, .onnx, .mlir, .stablehlo.mlir, .py or .pt2",
        ),
        (
            ["net.pb.gz"],
            "net.pb.gz must end in .json, .json.gz, .pb, .binpb, .ir, .onnx, .mlir, .stablehlo.mlir, .py or .pt2",
        ),
        (["net.onnx", "--weights", "none.pt"], "no such file: none.pt"),
    ],
)
def test_mistakes_are_one_line(
    model: nn.Module, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    before = sorted(Path().iterdir())
    assert main(["convert", "net.json", "-o", *arguments]) == 1
    assert capsys.readouterr().err == f"torch-ir: error: {told}\n"
    assert sorted(Path().iterdir()) == before
