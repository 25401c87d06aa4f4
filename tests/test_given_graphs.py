"""Functions that take a graph: given a model, a path or a dict instead, they capture it or say what to call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_ir
from torch_ir.errors import ArgumentError

TAKE_MODELS = {"compile", "cost", "explore", "optimize", "quantize", "render", "to_onnx"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("shift", torch.full((4,), 3.0), persistent=False)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norm(self.fc(x)) + self.shift
        return y if scale is None else y * scale


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def graph_functions() -> Iterator[tuple[str, Callable[..., Any], list[str]]]:
    """Yield every public function or class with an argument that is a graph, and the names of these arguments."""
    for name in torch_ir.__all__:
        found = getattr(torch_ir, name)
        is_made_by_users = inspect.isfunction(found) or name in ("IRExecutor", "StageRank")
        if not is_made_by_users:
            continue
        arguments = inspect.signature(found).parameters.values()
        graphs = [one.name for one in arguments if one.annotation in ("IR", "IR | Model", "IR | nn.Module")]
        if graphs:
            yield name, found, graphs[:1]


FUNCTIONS = list(graph_functions())
SMALL = torch_ir.extract_ir(nn.ReLU().eval(), (torch.ones(1, 2),), strict=False)
REMEDIES = [
    ("model.json", "torch_ir.load_ir('model.json')"),
    (Path("model.json"), "torch_ir.load_ir('model.json')"),
    ({"nodes": []}, "torch_ir.IR.from_dict"),
    (torch_ir.optimize(SMALL), "ir, report = torch_ir.optimize"),
    (torch.export.export(nn.ReLU(), (torch.ones(1, 2),)), "torch_ir.convert_exported_program"),
    (None, "not None"),
    (Net, "not the class Net; make an object of it first"),
    (7, "not a value of type int"),
]


def test_the_list_is_not_empty() -> None:
    """The sweep below finds the functions that it is about."""
    names = {name for name, _, _ in FUNCTIONS}
    assert names >= TAKE_MODELS
    assert {"shard", "IRExecutor", "liveness", "verify_ir", "to_torch", "save_ir"} <= names


def call(function: Callable[..., Any], graphs: list[str], given: object) -> None:
    """Call a function with `given` for its graph, and nothing sensible for the other arguments it needs."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    function(**{p.name: given if p.name in graphs else "other.onnx" for p in needed})


@pytest.mark.parametrize(("name", "function", "graphs"), FUNCTIONS, ids=[name for name, _, _ in FUNCTIONS])
def test_one_sentence_says_what_to_call(
    name: str, function: Callable[..., Any], graphs: list[str], net: nn.Module
) -> None:
    """For a model, a path, a dict, the result of optimize, an exported program and nothing at all."""
    remedies = [
        *REMEDIES,
        (net, "example_inputs=" if name in TAKE_MODELS else "torch_ir.extract_ir(model, example_inputs, strict=False)"),
    ]
    for given, remedy in remedies:
        with pytest.raises(ArgumentError) as caught:
            call(function, graphs, given)
        assert remedy in str(caught.value)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_target_says_it_too(net: nn.Module) -> None:
    with pytest.raises(ArgumentError, match=r"npu.lower takes an IR, not the model Net; capture it first"):
        torch_ir.Target("npu").lower(net)  # type: ignore[arg-type]


def test_a_compiled_model_is_the_model(net: nn.Module) -> None:
    """Captured inside, with its own weights, also those that no state dict has."""
    x = torch.randn(3, 4)
    compiled = torch_ir.compile(net, example_inputs=(x,), backend="torch")
    torch.testing.assert_close(compiled(x), net(x))


def test_other_weights_replace_those_of_the_model(net: nn.Module) -> None:
    other, x = Net().eval(), torch.randn(3, 4)
    compiled = torch_ir.compile(net, other, example_inputs=(x,), backend="torch")
    torch.testing.assert_close(compiled(x), other(x))


def test_inputs_by_name(net: nn.Module) -> None:
    """A mapping is keyword inputs."""
    call = {"x": torch.randn(3, 4), "scale": torch.randn(4)}
    compiled = torch_ir.compile(net, example_inputs=call, backend="torch")
    torch.testing.assert_close(compiled(**call), net(**call))


def test_a_model_without_values_has_no_weights_to_compile_with() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2).eval()
    with pytest.raises(torch_ir.WeightLoadError, match="on meta and has no values"):
        torch_ir.compile(model, example_inputs=(torch.ones(1, 2),), backend="torch")


def test_inputs_for_a_graph_are_refused(net: nn.Module) -> None:
    """They would have no effect."""
    ir = torch_ir.extract_ir(net, (torch.ones(2, 4),), strict=False)
    with pytest.raises(ArgumentError, match="is already a graph"):
        torch_ir.cost(ir, example_inputs=(torch.ones(2, 4),))


def test_the_others_take_a_model(net: nn.Module, tmp_path: Path) -> None:
    """With the result that they have for its graph."""
    inputs = (torch.ones(2, 4),)
    ir = torch_ir.extract_ir(net, inputs, strict=False)
    assert torch_ir.cost(net, example_inputs=inputs).flops == torch_ir.cost(ir).flops > 0
    assert str(torch_ir.optimize(net, example_inputs=inputs)[0]) == str(torch_ir.optimize(ir)[0])
    for suffix, function in (("mmd", torch_ir.render), ("html", torch_ir.explore)):
        one, other = tmp_path / f"one.{suffix}", tmp_path / f"other.{suffix}"
        function(net, one, example_inputs=inputs)  # type: ignore[operator]
        function(ir, other)  # type: ignore[operator]
        assert one.read_text() == other.read_text()


def test_a_model_becomes_onnx(net: nn.Module, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    path, x = tmp_path / "net.onnx", torch.randn(2, 4)
    torch_ir.to_onnx(net, path, net, example_inputs=(x,))
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator(onnx.load(path))
    (found,) = evaluator.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), net(x), atol=1e-5, rtol=1e-5)


def checkpoint(kind: str, net: nn.Module, folder: Path) -> Any:
    """Return the weights of a model in one of the forms that users have them."""
    state = net.state_dict()
    if kind == "model":
        return net
    if kind == "state dict":
        return state
    if kind == "pt":
        torch.save(state, folder / "net.pt")
        return folder / "net.pt"
    save_file = pytest.importorskip("safetensors.torch").save_file
    if kind == "safetensors":
        save_file(state, folder / "net.safetensors")
        return str(folder / "net.safetensors")
    shards = {f"{part}.safetensors": [key for key in state if key.startswith(part)] for part in ("fc", "norm")}
    for name, keys in shards.items():
        save_file({key: state[key] for key in keys}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {key: name for name, keys in shards.items() for key in keys}}))
    return folder if kind == "folder" else index


@pytest.mark.parametrize("kind", ["model", "state dict", "pt", "safetensors", "index", "folder"])
def test_weights_in_every_form(kind: str, net: nn.Module, tmp_path: Path) -> None:
    """A model, its state dict, a file, an index of shards and a folder, for every function that takes weights."""
    x = torch.randn(2, 4)
    ir = torch_ir.extract_ir(net, (x,), strict=False)
    weights = checkpoint(kind, net, tmp_path)
    torch.testing.assert_close(torch_ir.compile(ir, weights, backend="torch")(x), net(x))
    torch.testing.assert_close(torch_ir.IRExecutor(ir, weights)(x), net(x))
    torch.testing.assert_close(torch_ir.execute_ir(ir, (x,), weights)[0], net(x))
    torch.testing.assert_close(torch_ir.to_torch(ir, weights)(x), net(x))
    assert torch_ir.verify_ir_with_state_dict(ir, weights, net, (x,), probe=False)[0]
    torch_ir.write_golden(ir, weights, (x,), tmp_path / "pack")


def test_weights_that_are_none_of_these(net: nn.Module) -> None:
    ir = torch_ir.extract_ir(net, (torch.ones(2, 4),), strict=False)
    with pytest.raises(ArgumentError, match="a state dict, a model, or the path of a checkpoint, not list"):
        torch_ir.compile(ir, [torch.ones(2)], backend="torch")  # type: ignore[arg-type]
