"""IRExecutor: planned once and run many times; its state, its prologue, and its errors."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import captured, module
from torch_ir import IR, ExecutionError, IRExecutor, OpNode, TensorMeta, execute_ir

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
LAYER = module(lambda self, x: self.layer(x), layer=nn.Linear(4, 4))


def tensor(name: str, *shape: int) -> TensorMeta:
    return TensorMeta(name, shape or (3, 4), "float32")


def chain(*op_types: str) -> IR:
    """A graph where each operator reads the result of the one before."""
    names = ["x", *(f"n{index}" for index in range(len(op_types)))]
    nodes = [
        OpNode(name, op_type, [tensor(before)], [tensor(name)])
        for before, name, op_type in zip(names, names[1:], op_types, strict=False)
    ]
    return IR(nodes, [tensor("x")], [tensor(names[-1])])


# -- running ----------------------------------------------------------------------------------------------------------


def test_runs_many_times() -> None:
    """One executor serves many inputs, and equal inputs yield equal results."""
    executor = IRExecutor(captured(LAYER, X), LAYER.state_dict())
    for x in (X, X * 2, X):
        assert torch.equal(executor.execute((x,))[0], LAYER(x))


def test_call_as_the_model_is_called() -> None:
    """The executor has the model's signature and results; `execute` is the flat form."""
    model = module(lambda self, x, *, y: {"sum": x + y["a"], "list": [x, 3, None]})
    executor = IRExecutor(captured(model, X, kwargs={"y": {"a": X}}), {})
    result = executor(X, y={"a": X * 2})
    assert list(result) == ["sum", "list"]
    assert torch.equal(result["sum"], X * 3)
    assert result["list"][1:] == [3, None]
    total, x = executor.execute((X, X * 2))
    assert torch.equal(total, X * 3)
    assert x is X


def test_execute_takes_nested_inputs() -> None:
    """`execute` also accepts inputs nested as in the model."""
    model = module(lambda self, d: d["a"] - d["b"])
    executor = IRExecutor(captured(model, {"a": X, "b": X}), {})
    assert torch.equal(executor.execute(({"a": X * 3, "b": X},))[0], X * 3 - X)


def test_execute_ir(tmp_path: Path) -> None:
    """The one-line form takes weights from a dict or from a file; with neither it raises a ValueError."""
    ir = captured(LAYER, X)
    torch.save(LAYER.state_dict(), tmp_path / "weights.pt")
    for weights in ({"weights": LAYER.state_dict()}, {"weights_path": tmp_path / "weights.pt"}):
        assert torch.equal(execute_ir(ir, (X,), **weights)[0], LAYER(X))
    with pytest.raises(ValueError, match="needs weights or weights_path"):
        execute_ir(ir, (X,))


def test_weights_can_be_bound_later() -> None:
    """Without weights a run is refused; binding others changes the results."""
    executor = IRExecutor(captured(LAYER, X))
    with pytest.raises(ExecutionError, match="no weights are bound"):
        executor(X)
    executor.load_weights_from_state_dict(LAYER.state_dict())
    assert torch.equal(executor(X), LAYER(X))
    executor.load_weights_from_state_dict({"layer.weight": torch.zeros(4, 4), "layer.bias": torch.ones(4)})
    assert torch.equal(executor(X), torch.ones(3, 4))


def test_a_graph_without_weights_needs_none() -> None:
    assert torch.equal(IRExecutor(chain("aten.relu.default"))(X)[0], X.relu())


def test_hand_written_nodes_run() -> None:
    """Nodes with positional tensors and few attributes run: names and defaults come from the operator's schema."""
    weight, bias = tensor("w", 2, 4), tensor("b", 2)
    linear = OpNode("linear", "aten.linear.default", [tensor("x"), weight, bias], [tensor("linear", 3, 2)])
    softmax = OpNode("s", "aten.softmax.int", [tensor("linear", 3, 2)], [tensor("s", 3, 2)], {"dim": 1})
    ir = IR([linear, softmax], [tensor("x")], [tensor("s", 3, 2)], [weight, bias], {"w": "w", "b": "b"})
    w, b = torch.randn(2, 4), torch.randn(2)
    assert torch.equal(IRExecutor(ir, {"w": w, "b": b})(X)[0], nn.functional.linear(X, w, b).softmax(1))
    assert not ir.nodes[0].has_named_args  # the caller's graph is as it was


def test_device_argument() -> None:
    """Weights, and devices that the graph names, are moved to the requested device."""
    model = module(lambda self, x: self.layer(x) + torch.arange(4, device=x.device), layer=nn.Linear(4, 4))
    executor = IRExecutor(captured(model, X), model.state_dict(), device="cpu")
    assert torch.equal(executor(X), model(X))
    assert executor.state["layer.weight"].device.type == "cpu"
    on_meta = IRExecutor(captured(model, X), model.state_dict(), device="meta")
    assert on_meta(X.to("meta")).is_meta


# -- memory -----------------------------------------------------------------------------------------------------------


def test_values_go_after_their_last_use(executors: Callable[..., None]) -> None:
    """A value dies right after the last node that reads it."""
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def step(inputs: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
        result = inputs[0] + 1
        alive.append(sum(reference() is not None for reference in made))
        made.append(weakref.ref(result))
        return [result]

    executors("tests.step", step)
    (result,) = IRExecutor(chain(*["tests.step"] * 5))(X)
    assert alive == [0, 1, 1, 1, 1]
    assert [reference() is not None for reference in made] == [False] * 4 + [True]
    assert torch.equal(result, X + 1 + 1 + 1 + 1 + 1)


def test_results_that_nobody_reads_go_at_once(executors: Callable[..., None]) -> None:
    """An unused output is freed immediately."""
    made: list[weakref.ref[Tensor]] = []

    def pair(inputs: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
        results = [inputs[0] + 1, inputs[0] + 2]
        made.append(weakref.ref(results[1]))
        return results

    def look(inputs: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
        assert made[0]() is None
        return [inputs[0] * 1]

    executors("tests.pair", pair)
    executors("tests.look", look)
    first = OpNode("pair", "tests.pair", [tensor("x")], [tensor("a"), tensor("b")])
    second = OpNode("look", "tests.look", [tensor("a")], [tensor("c")])
    assert torch.equal(IRExecutor(IR([first, second], [tensor("x")], [tensor("c")]))(X)[0], X + 1)


# -- the prologue -----------------------------------------------------------------------------------------------------


calls = {"pack": 0, "noise": 0}


@torch.library.custom_op("torch_ir_tests::pack", mutates_args=())
def pack(weight: Tensor) -> Tensor:
    calls["pack"] += 1
    return weight.t().contiguous() * 2


@pack.register_fake
def _(weight: Tensor) -> Tensor:
    return weight.t().contiguous()


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    """Nodes over weights run when weights are bound, not in every run."""
    model = module(
        lambda self, x: x @ (pack(self.layer.weight) + 1) + pack(self.layer.weight)[0], layer=nn.Linear(4, 4)
    )
    ir = captured(model, X)
    calls["pack"] = 0
    executor = IRExecutor(ir, model.state_dict())
    assert calls["pack"] == 2
    results = [executor(X) for _ in range(3)]
    assert calls["pack"] == 2
    assert torch.equal(results[0], results[2])
    executor.load_weights_from_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    assert calls["pack"] == 4
    assert not torch.equal(executor(X), results[0])


def test_what_a_buffer_changes_is_computed_every_time() -> None:
    """A node over a buffer that the model changes is not in the prologue, nor is one over a random number."""

    def forward(self: Any, x: Tensor) -> Any:
        self.count.add_(1)
        return x * pack(self.count), torch.rand(2) + 1

    model = module(forward, buffers={"count": torch.zeros(1, 1)})
    ir = captured(model, torch.ones(1, 1))
    executor = IRExecutor(ir, {"count": torch.zeros(1, 1)})
    first, second = executor(torch.ones(1, 1)), executor(torch.ones(1, 1))
    assert (first[0].item(), second[0].item()) == (2.0, 4.0)
    assert not torch.equal(first[1], second[1])


def test_results_are_not_shared_between_runs() -> None:
    """Results are private to the caller: writing to them changes no later run, even for the prologue."""

    def forward(self: Any, x: Tensor) -> Any:
        table = self.layer.weight * 2
        return x @ table, table, table[0], torch.zeros(4), table.t().view(4, 4)

    model = module(forward, layer=nn.Linear(4, 4))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    executor = IRExecutor(captured(model, X), weights)
    expected = [value.clone() for value in executor(X)]
    for value in executor(X):
        value.fill_(9)
    assert all(torch.equal(got, wanted) for got, wanted in zip(executor(X), expected, strict=True))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


# -- errors -----------------------------------------------------------------------------------------------------------


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(4, 3) @ x


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_errors_name_the_node() -> None:
    """An operator that raises is named with its node, module and source line; the cause is chained."""
    ir = captured(Outer().eval(), X)
    ir.node("reshape").attrs["shape"] = [2, 6]
    with pytest.raises(ExecutionError) as caught:
        IRExecutor(ir, {})(X)
    message = str(caught.value)
    assert message.startswith("OpNode('matmul', 'aten.matmul.default') (module inner, tests/test_executor.py:")
    assert message.endswith("mat1 and mat2 shapes cannot be multiplied (2x6 and 3x4)")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_errors_inside_functions_name_the_inner_node() -> None:
    """An operator that refuses inside a branch is named itself, not the branch around it."""
    model = module(lambda self, x: torch.cond(x.sum() > 0, lambda x: x.softmax(1), lambda x: x.softmax(1) * 2, (x,)))
    ir = captured(model, X)
    for body in ir.functions.values():
        body.nodes[0].attrs["dim"] = 5
    with pytest.raises(ExecutionError, match=r"OpNode\('softmax', 'aten.softmax.int'\).*: Dimension out of range"):
        IRExecutor(ir, {})(X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.execute(X), r"inputs is a tensor; wrap it in a tuple: \(tensor,\)"),
        (
            lambda run: run.execute({"x": X}),
            r"inputs is a dict; .* call the executor by keyword: executor\(\*\*inputs\)",
        ),
        (lambda run: run.run({"x": X}), r"inputs is a dict; .* call the executor by keyword: executor\(\*\*inputs\)"),
        (lambda run: run.execute(None), "inputs must be a tuple, not NoneType"),
        (lambda run: run.execute((X, X)), r"inputs: expected 1 item, got 2"),
        (lambda run: run(), r"inputs: expected 1 item, got 0"),
        (lambda run: run.execute((X[:2],)), r"input 'x' has shape \[2, 4\], the graph takes \[3, 4\]"),
        (lambda run: run.execute((X.long(),)), "input 'x' is int64, the graph takes float32"),
        (lambda run: run.execute(([X],)), "input 'x' must be a tensor, not list"),
        (lambda run: run.execute((3.0,)), "input 'x' must be a tensor, not float"),
    ],
    ids=["bare", "dict", "dict run", "none", "many", "few", "shape", "dtype", "list", "number"],
)
def test_wrong_inputs(call: Callable[[IRExecutor], Any], message: str) -> None:
    """Inputs are checked against the graph before anything runs."""
    with pytest.raises(ExecutionError, match=message):
        call(IRExecutor(chain("aten.relu.default")))


def test_unknown_operators_are_all_named() -> None:
    """Every operator that cannot run is in the one error, functions included."""
    ir = chain("tests.first", "aten.relu.default", "tests.second", "aten.no_such_op.default")
    ir.functions["body"] = chain("tests.third")
    with pytest.raises(ExecutionError) as caught:
        IRExecutor(ir)
    assert str(caught.value) == (
        "no executor for tests.first (node 'n0'), tests.second (node 'n2'), aten.no_such_op.default (node 'n3'), "
        "tests.third (node 'n0'); import what defines it (on the command line: --import MODULE), "
        "or use @register_executor"
    )


@pytest.mark.parametrize(
    "op_type",
    [
        "aten.from_file.default",
        "aten.set_.source_Tensor",
        "aten.resize_.default",
        "aten.set_data.default",
        "profiler._record_function_enter.default",
        "prim.Print.default",
    ],
)
def test_forbidden_operators(op_type: str) -> None:
    """No graph may access files, storage or the process, even in a function or with a registered executor."""
    inside = chain("aten.relu.default")
    inside.functions["body"] = chain(op_type)
    for ir in (chain(op_type), inside):
        with pytest.raises(
            ExecutionError, match=r"OpNode\('n0', .* reaches outside the graph: .*; no graph may run it"
        ):
            IRExecutor(ir)


@pytest.mark.parametrize(
    "op_type",
    [
        "aten.save.default",
        "aten.manual_seed.default",
        "aten.set_grad_enabled.default",
        "aten.relu.__class__",
        "os.system.x",
    ],
)
def test_only_dispatched_operators_are_found(op_type: str) -> None:
    """TorchScript's functions, attributes of operators and Python names are not operators."""
    with pytest.raises(ExecutionError, match="no executor for"):
        IRExecutor(chain(op_type))


def test_arguments_that_are_left_out() -> None:
    """An omitted argument has its default; a missing required argument is an error."""
    x, out = tensor("x"), TensorMeta("n", (3, 1), "float32")
    node = OpNode("n", "aten.sum.dim_IntList", [x], [out], {"keepdim": True}, args=["self"])
    ir = IR([node], [x], [out])
    with pytest.raises(ExecutionError, match=r"OpNode\('n', .* lacks the argument 'dim' of aten.sum.dim_IntList"):
        IRExecutor(ir)
    node.attrs["dim"] = [1]
    assert torch.equal(IRExecutor(ir)(X)[0], X.sum(1, keepdim=True))


def test_surplus_arguments_are_refused() -> None:
    """An attribute that is not in the schema is an error."""
    node = OpNode("n", "aten.relu.default", [tensor("x")], [tensor("n")], {"slope": 2}, args=["self"])
    with pytest.raises(ExecutionError, match=r"has an argument 'slope' that aten\.relu\.default does not have"):
        IRExecutor(IR([node], [tensor("x")], [tensor("n")]))
