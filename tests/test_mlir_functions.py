"""Functions that survive in MLIR: one private function for each block, which the real MLIR verifies and IREE runs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.proof import assert_near, captured
from torch_ir import IR, ConversionError, optimize
from torch_ir.run.binding import bind
from torch_ir.targets import to_mlir

mlir = pytest.importorskip("iree.compiler.ir", reason="torch-ir[mlir] is not installed")
pytestmark = pytest.mark.usefixtures("_seeded")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.fc(x)).reshape(x.shape[0], -1)


class Tower(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.tanh()


def folded(model: nn.Module, x: Tensor, **options: Any) -> IR:
    return captured(model, x, **options).fold_blocks()


def functions_in(text: str) -> list[str]:
    """Return the names of the functions that MLIR parses and verifies."""
    with mlir.Context():
        found = mlir.Module.parse(text)
        assert found.operation.verify()
        return [str(op.attributes["sym_name"]) for op in found.body if op.operation.name == "func.func"]


def test_layers_are_calls_of_one_private_function() -> None:
    """Each with its own weights as arguments; the open size is read from the argument."""
    ir = folded(Tower().eval(), torch.randn(3, 4), dynamic_shapes={"x": {0: Dim("batch", min=2)}})
    text = to_mlir(ir)
    assert functions_in(text) == ['"Layer"', '"main"']
    assert text.count("func.call @Layer(") == 3
    assert text.count("torch.aten.linear ") == 1
    assert "func.func private @Layer(%input: !torch.vtensor<[?,4],f32>, %fc_weight: !torch.vtensor<[4,4],f32>" in text
    assert functions_in(to_mlir(ir, functions="none")) == ['"main"']
    assert len(to_mlir(ir)) < len(to_mlir(ir, functions="none"))


def test_fused_operators_are_functions_too() -> None:
    """Also inside a layer."""
    text = to_mlir(optimize(folded(Tower().eval(), torch.randn(3, 4)), "full")[0], functions="all")
    assert functions_in(text) == ['"linear_relu"', '"Layer"', '"main"']


def test_a_weight_may_have_the_name_of_a_function() -> None:
    """Symbols of a module are unique."""
    model = Tower().eval()
    model.Layer = nn.Parameter(torch.randn(4))
    ir = folded(model, torch.randn(3, 4))
    ir.params[0].param = type(ir.params[0].param)(("Layer",))
    names = functions_in(to_mlir(ir))
    assert names == ['"Layer"', '"main"']


def test_what_the_dialect_lacks_in_a_function_is_listed_once() -> None:
    """For all layers together, with what is outside of them."""

    class Unsupported(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvalsh(x) + x

    model = Tower(2).eval()
    model.layers = nn.ModuleList([Unsupported(), Unsupported()])
    with pytest.raises(ConversionError) as refused:
        to_mlir(folded(model, torch.randn(4, 4)))
    assert str(refused.value).splitlines()[1:] == [
        "  aten._linalg_eigh.default  (linalg_eigvalsh._linalg_eigh)  float32[4, 4] -> float32[4] float32[4, 4]"
    ]


@pytest.mark.long
def test_iree_runs_functions() -> None:
    """With the results of the model."""
    pytest.importorskip("iree.runtime", reason="torch-ir[mlir] is not installed")
    from torch_ir.backends.iree import _Module
    from torch_ir.backends.iree_compiler import compile_module

    model, x = Tower().eval(), torch.randn(3, 4)
    graph, weights = bind(folded(model, x), model.state_dict())
    assert any(node.is_call for node in graph.nodes)
    (found,) = _Module(compile_module(to_mlir(graph)), graph, weights)([x])
    with torch.no_grad():
        assert_near(found, model(x))
