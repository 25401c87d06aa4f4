"""A file that does not compute what its graph computes is not written, and the first node that differs is named."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnx_ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import module
from torch_ir import IR, extract_ir, to_onnx
from torch_ir.backends import onnx_check
from torch_ir.backends.placement import placed
from torch_ir.cli.dispatch import main
from torch_ir.errors import ConversionError
from torch_ir.targets.onnx import onnx_program

pytestmark = pytest.mark.usefixtures("_seeded")
Mutation = Callable[[onnx_ir.Model], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).relu()
        return x / (x.norm() + 1e-8) + y


def captured(model: nn.Module, *inputs: Any, dynamic: Any = None) -> IR:
    return extract_ir(model.eval(), inputs, strict=False, dynamic_shapes=dynamic)


def without_summand(model: onnx_ir.Model) -> None:
    """Drop a summand of 1e-8, as onnxscript's `optimize` does."""
    for node in [*model.graph]:
        numbers = [value.const_value.numpy() for value in node.inputs if value is not None and value.const_value]
        if node.op_type == "Add" and any(number.size == 1 and abs(number.item()) < 1e-6 for number in numbers):
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])


def without_relu(model: onnx_ir.Model) -> None:
    for node in model.graph:
        if node.op_type == "Relu":
            node.op_type = "Identity"


def mutated(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    whole = onnx_program.simplify
    monkeypatch.setattr(onnx_program, "simplify", lambda model: (whole(model), mutation(model)))


@pytest.mark.parametrize("weights", [None, Net().state_dict()], ids=["no weights", "weights"])
@pytest.mark.parametrize("dynamic", [None, {"x": {0: Dim("batch")}}], ids=["fixed", "dynamic"])
@pytest.mark.parametrize(
    ("mutation", "node"),
    [(without_summand, "aten.div.Tensor (div)"), (without_relu, "aten.relu.default (relu)")],
)
def test_a_wrong_file_is_not_written(
    mutation: Mutation, node: str, dynamic: Any, weights: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the first node; nothing is written, unless the comparison is left out."""
    ir = captured(Net(), torch.randn(3, 4), dynamic=dynamic)
    to_onnx(ir, tmp_path / "right.onnx", weights)
    mutated(monkeypatch, mutation)
    with pytest.raises(ConversionError) as caught:
        to_onnx(ir, tmp_path / "wrong.onnx", weights)
    assert str(caught.value).startswith(
        f"in ONNX Runtime, the file of Net would not compute {node} as the executor does"
    )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "wrong.onnx").exists()
    to_onnx(ir, tmp_path / "wrong.onnx", weights, check=False)
    assert (tmp_path / "wrong.onnx").exists()


def test_a_call_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In function form, the first call of the function."""
    tower = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    ir = extract_ir(tower.eval(), (torch.randn(2, 4),), strict=False, blocks="function")
    assert ir.functions
    to_onnx(ir, tmp_path / "tower.onnx")
    mutated(monkeypatch, without_relu)
    with pytest.raises(ConversionError, match=f"would not compute {ir.nodes[0].op_type} \\({ir.nodes[0].name}\\)"):
        to_onnx(ir, tmp_path / "wrong.onnx")


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        (module(lambda self, x: nn.functional.dropout(x, 0.5)), (torch.ones(4),), "the graph draws random numbers"),
        (module(lambda self, x: x @ x), (torch.ones(4, 4, dtype=torch.bfloat16),), "ONNX Runtime does not run"),
        (module(lambda self, x: x @ x), (torch.empty(4096, 4096, device="meta"),), "too large"),
    ],
    ids=["random", "no kernel", "large"],
)
def test_what_cannot_be_compared_is_written(
    model: nn.Module, inputs: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, onnx_check.__name__):
        to_onnx(captured(model, *inputs), tmp_path / "net.onnx")
    assert reason in caplog.text
    assert (tmp_path / "net.onnx").exists()


class Counted(nn.Module):
    """A buffer that the model changes, an input that it writes to, and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += x.sum(0)
        x.mul_(2)
        return self.calls * x, ids // 2


def test_changed_tensors_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ir = captured(Counted(), torch.randn(2, 3), torch.arange(4))
    to_onnx(ir, tmp_path / "counted.onnx")

    def without_product(model: onnx_ir.Model) -> None:
        changed = model.graph.outputs[-1].producer()
        assert changed is not None
        changed.replace_input_with(1, changed.inputs[0])

    mutated(monkeypatch, without_product)
    with pytest.raises(ConversionError, match=r"would not compute aten.mul.Tensor"):
        to_onnx(ir, tmp_path / "counted.onnx")


def test_the_command_leaves_the_comparison_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`--no-check`, for ONNX alone."""
    captured(Net(), torch.randn(3, 4)).save(tmp_path / "net.json")
    mutated(monkeypatch, without_relu)
    command = ["convert", str(tmp_path / "net.json"), "-o", str(tmp_path / "net.onnx")]
    assert main(command) == 1
    assert "would not compute aten.relu.default (relu)" in capsys.readouterr().err
    assert main([*command, "--no-check"]) == 0
    assert main([*command[:-1], str(tmp_path / "net.mlir"), "--no-check"]) == 1
    assert "--no-check is for .onnx, not for .mlir" in capsys.readouterr().err


def test_a_graph_of_another_device_is_compared_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ir = placed(captured(Net(), torch.randn(3, 4)), torch.device("cuda:0"))
    mutated(monkeypatch, without_relu)
    with pytest.raises(ConversionError, match="would not compute aten\\.relu\\.default"):
        to_onnx(ir, tmp_path / "net.onnx")


def test_the_file_is_not_changed_by_the_comparison(tmp_path: Path) -> None:
    """Random weights are for the comparison alone."""
    ir = captured(Net(), torch.randn(3, 4))
    to_onnx(ir, tmp_path / "a.onnx")
    to_onnx(ir, tmp_path / "b.onnx", check=False)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_zero_row_has_no_nan(tmp_path: Path) -> None:
    """In the file as ONNX Runtime runs it by default."""
    net = Net()
    to_onnx(captured(net, torch.randn(3, 4)), tmp_path / "net.onnx", net.state_dict())
    found = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"x": numpy.zeros((3, 4), numpy.float32)})[0]
    torch.testing.assert_close(torch.from_numpy(found), net(torch.zeros(3, 4)).detach())


def test_positions_between_two_elements_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """ONNX Runtime rounds a position before it reflects it, which differs from torch only halfway between elements."""

    def forward(self: nn.Module, x: Tensor, grid: Tensor) -> Tensor:
        return torch.nn.functional.grid_sample(x, grid, "nearest", "reflection", align_corners=False)

    x, grid = torch.randn(1, 2, 4, 4), torch.rand(1, 8, 8, 2) * 6 - 3
    to_onnx(captured(module(forward), x, grid), path := tmp_path / "samples.onnx")
    session = onnxruntime.InferenceSession(path)
    names = [given.name for given in session.get_inputs()]
    got = session.run(None, dict(zip(names, (x.numpy(), grid.numpy()), strict=True)))[0]
    assert numpy.array_equal(got, module(forward)(x, grid).numpy())
