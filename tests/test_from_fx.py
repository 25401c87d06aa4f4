"""torch.fx graph modules as IRs: whatever their nodes call, the results are the same."""

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import catalogue
from tests.proof import module
from torch_ir import IR, IRExecutor, diff, extract_ir, optimize
from torch_ir.capture import convert_exported_program, from_fx
from torch_ir.errors import CaptureWarning, ExportError


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    torch.compiler.reset()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore", CaptureWarning)
        warnings.filterwarnings("ignore", module=r"torch\..*")
        torch.manual_seed(0)
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.fc(x)) * self.scale + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.reshape(x.shape[0] * 2, -1).mean(-1)


X = torch.randn(3, 4)


def assert_computes(ir: IR, model: Callable[..., Any], *inputs: Any, state: Any = None) -> None:
    torch.testing.assert_close(IRExecutor(ir, state or {})(*inputs), model(*inputs))


def test_a_symbolic_trace() -> None:
    """Modules, methods and functions become operators; weights have their keys, and nodes their places."""
    model = Model().eval()
    traced = fx.symbolic_trace(model)
    assert {node.op for node in traced.graph.nodes} >= {"call_module", "call_method", "call_function", "get_attr"}
    ir = from_fx(traced, (X,), model_name="Model")
    assert_computes(ir, model, X, state=model.state_dict())
    assert ir.model_name == "Model"
    assert {param.key for param in ir.params} == model.state_dict().keys()
    assert [node.origin.module for node in ir.nodes][:3] == ["layers.0.fc", "layers.0", "layers.0"]
    assert_computes(ir.fold_blocks(), model, X, state=model.state_dict())


def test_the_graph_of_a_trace_is_that_of_the_model() -> None:
    """Tracing with fx first does not change the capture."""
    entry = catalogue.find("cnn")
    model, inputs = entry.build(), entry.inputs()
    wanted = extract_ir(model, inputs, strict=False)
    assert str(diff(from_fx(fx.symbolic_trace(model), inputs), wanted)) == "the graphs are equal"


def test_operators_need_no_example_inputs() -> None:
    """make_fx records the properties of its inputs."""
    model = Model().eval()
    made = make_fx(model)(X)
    assert_computes(from_fx(made), model, X, state=made.state_dict())


def exported() -> tuple[nn.Module, torch.export.ExportedProgram]:
    model = module(lambda self, x, *, y: {"z": self.layer(x["a"]).reshape(-1) + y}, layer=nn.Linear(4, 4))
    dynamic = {"x": {"a": {0: Dim("batch", max=64)}}, "y": None}
    given = ({"a": X},), {"y": torch.ones(1)}
    return model, torch.export.export(model, *given, dynamic_shapes={"x": dynamic["x"], "y": None})


def test_a_module_of_torch_export() -> None:
    """Nested inputs, keywords, weights, and sizes that vary with their names."""
    model, program = exported()
    ir = from_fx(program.module())
    assert ir.graph_inputs[0].shape == ("batch", 4)
    assert ir.symbols["batch"].max == 64
    more = torch.randn(5, 4)
    got = IRExecutor(ir, model.state_dict())({"a": more}, y=torch.ones(1))
    torch.testing.assert_close(got["z"], model({"a": more}, y=torch.ones(1))["z"])


def test_the_graph_module_of_an_exported_program() -> None:
    """It takes weights as inputs; only the program itself says which of them are weights."""
    _, program = exported()
    ir = from_fx(program.graph_module)
    assert [tensor.name for tensor in ir.graph_inputs][:2] == ["p_layer_weight", "p_layer_bias"]
    assert [node.op_type for node in ir.nodes] == [node.op_type for node in convert_exported_program(program).nodes]


# -- a back end for torch.compile -------------------------------------------------------------------------------------


def backend(seen: list[IR]) -> Callable[..., Any]:
    """A back end that converts to the IR, optimises, and runs."""

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        ir, _ = optimize(from_fx(graph, inputs), "full")
        seen.append(ir)
        return IRExecutor(ir, {})

    return compile_graph


def test_a_back_end_of_the_user() -> None:
    """torch.compile passes its graph and runs the result; origins are those of the model."""
    model, seen = Model().eval(), list[IR]()
    compiled = torch.compile(model, backend=backend(seen))
    torch.testing.assert_close(compiled(X), model(X))
    assert len(seen) == 1
    assert {"layers.0", "layers.1"} <= {node.origin.module for node in seen[0].all_nodes()}
    assert seen[0].is_static


def test_a_back_end_with_sizes_that_vary() -> None:
    """One graph for all sizes; the number that torch.compile passes beside the tensor is not read."""
    model, seen = Model().eval(), list[IR]()
    compiled = torch.compile(model, backend=backend(seen), dynamic=True)
    for batch in (3, 5, 8):
        torch.testing.assert_close(compiled(torch.ones(batch, 4)), model(torch.ones(batch, 4)))
    assert len(seen) == 1
    assert len(seen[0].symbols) == 1


def test_a_back_end_of_operators() -> None:
    """The same with AOTAutograd, where the graph consists of ATen operators over fake tensors."""
    model, seen = Model().eval(), list[IR]()
    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=backend(seen)), dynamic=True)
    for batch in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(batch, 4)), model(torch.ones(batch, 4)))
    assert len(seen) == 1


def test_a_number_of_its_own() -> None:
    """An input that is a number and no size of another input stays one."""
    seen = list[IR]()
    compiled = torch.compile(lambda x, n: x * n + x.shape[0], backend=backend(seen), dynamic=True)
    for count in (3, 5):
        torch.testing.assert_close(compiled(X, count), X * count + 3)


def test_floats_that_torch_compile_makes_inputs() -> None:
    """With dynamic sizes, eps is an input; the error says how to keep it a number."""
    model, seen = nn.LayerNorm(4).eval(), list[IR]()
    with pytest.raises(Exception, match=r"set torch\._dynamo\.config\.specialize_float = True"):
        torch.compile(model, backend=backend(seen), dynamic=True)(X)
    torch.compiler.reset()
    with torch._dynamo.config.patch(specialize_float=True):
        compiled = torch.compile(model, backend=backend(seen), dynamic=True)
        for batch in (3, 5):
            torch.testing.assert_close(compiled(X[:1].repeat(batch, 1)), model(X[:1].repeat(batch, 1)))
    assert len(seen) == 1


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_what_is_no_graph_module() -> None:
    with pytest.raises(ExportError, match=r"from_fx takes a torch\.fx\.GraphModule, not Linear"):
        from_fx(nn.Linear(2, 2))  # type: ignore[arg-type]  # that is the point


def test_inputs_that_nobody_knows() -> None:
    """A symbolic trace has seen no inputs."""
    with pytest.raises(ExportError, match="the input 'x' of Model has no metadata; pass example_inputs"):
        from_fx(fx.symbolic_trace(Model().eval()), model_name="Model")


def test_too_few_inputs() -> None:
    with pytest.raises(ExportError, match="takes 1 inputs, but example_inputs has 2"):
        from_fx(fx.symbolic_trace(Model().eval()), (X, X))


def test_training_mode_is_told_of_modules_that_have_one() -> None:
    """A bare graph has no modules in training mode, although torch marks every new graph module so."""
    graph = fx.Graph()
    graph.output(graph.call_function(operator.add, (graph.placeholder("x"), 1)))
    plain = fx.GraphModule(nn.Module(), graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_fx(plain, (X,))
    with pytest.warns(CaptureWarning, match="training mode"):
        from_fx(fx.symbolic_trace(nn.Sequential(nn.Dropout())), (X,))


def test_the_graph_module_is_left_as_it_was() -> None:
    traced = fx.symbolic_trace(Model())
    code, mode = traced.code, traced.training
    from_fx(traced, (X,))
    assert (traced.code, traced.training) == (code, mode)
    assert str(diff(from_fx(traced, (X,)), extract_ir(traced, (X,), strict=False))) == "the graphs are equal"
