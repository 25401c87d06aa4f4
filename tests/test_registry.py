"""Registration of operators: the extension guide, run as written."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035  # as the guide writes it

import pytest
import torch
from torch import Tensor, nn

from tests.proof import captured, module, ops, verdict
from torch_ir import IR, ConversionError, ExecutionError, IRExecutor, OpNode, TensorMeta, extract_ir
from torch_ir.analyzer import NodeInfo
from torch_ir.errors import RegistryError
from torch_ir.ops import register_executor, register_op
from torch_ir.ops.registry import get_conversion_fn, get_execution_fn, list_registered_ops, unregister

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    """Remove the registrations of a test."""
    before = {name for names in list_registered_ops().values() for name in names}
    yield
    for name in {name for names in list_registered_ops().values() for name in names} - before:
        unregister(name)


@torch.library.custom_op("custom::fused_gate", mutates_args=())
def fused_gate(gate: Tensor, value: Tensor, scale: float = 1.0) -> Tensor:
    return torch.sigmoid(gate) * value * scale


@fused_gate.register_fake
def _(gate: Tensor, value: Tensor, scale: float = 1.0) -> Tensor:
    return torch.empty_like(value)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return fused_gate(self.gate(x), x) + 1


def node(name: str, op_type: str, outputs: int = 1, **attrs: Any) -> IR:
    """A graph of one node that reads `x`."""
    x = TensorMeta("x", (3, 4), "float32")
    made = [TensorMeta(f"{name}_{index}", (3, 4), "float32") for index in range(outputs)]
    return IR([OpNode(name, op_type, [x], made, attrs)], [x], made)


# -- the extension guide ----------------------------------------------------------------------------------------------


def test_guide_complete_example(tmp_path: Path) -> None:
    """Section 5: a conversion and an executor for an operator, from extraction to a loaded file that runs."""

    @register_op("custom.fused_gate")
    def convert_fused_gate(node_info: NodeInfo) -> OpNode:
        return OpNode(
            name=node_info.name,
            op_type="custom.fused_gate",
            inputs=node_info.input_metas,
            outputs=node_info.output_metas,
            attrs=node_info.attrs,
        )

    @register_executor("custom.fused_gate")
    def execute_fused_gate(inputs: List[torch.Tensor], attrs: Dict[str, Any]) -> List[torch.Tensor]:  # noqa: UP006
        """Fused gating: sigmoid(gate) * value."""
        gate = inputs[0]
        value = inputs[1]
        return [torch.sigmoid(gate) * value]

    with torch.device("meta"):
        model = Gated().eval()
    extract_ir(model, (torch.empty(3, 4, device="meta"),)).save(tmp_path / "gated.json")
    ir = IR.load(tmp_path / "gated.json")
    assert ops(ir) == ["aten.linear.default", "custom.fused_gate", "aten.add.Tensor"]
    assert ir.nodes[1].attrs == {"scale": 1.0}
    assert [tensor.name for tensor in ir.nodes[1].inputs] == ["linear", "x"]
    real = Gated().eval()
    assert torch.allclose(IRExecutor(ir, real.state_dict()).execute((X,))[0], real(X))
    assert verdict(ir, real, X).is_valid


def test_guide_executor() -> None:
    """Section 3.1: an operator with only an executor; missing attributes have the default."""

    @register_executor("my_custom_op")
    def execute_my_custom_op(inputs: List[torch.Tensor], attrs: Dict[str, Any]) -> List[torch.Tensor]:  # noqa: UP006
        """Execute my_custom_op."""
        x = inputs[0]
        param = attrs.get("param", 1.0)
        return [x * param]

    assert torch.equal(IRExecutor(node("n", "my_custom_op"))(X)[0], X)
    assert torch.equal(IRExecutor(node("n", "my_custom_op", param=2.5))(X)[0], X * 2.5)


def test_guide_two_outputs() -> None:
    """Section 3.3: an executor with two outputs."""

    @register_executor("my_op_with_two_outputs")
    def execute_my_op(inputs: List[torch.Tensor], attrs: Dict[str, Any]) -> List[torch.Tensor]:  # noqa: UP006
        x = inputs[0]
        values, indices = x.topk(attrs.get("k", 1), dim=attrs.get("dim", -1))
        return [values, indices]

    values, indices = IRExecutor(node("n", "my_op_with_two_outputs", outputs=2, k=2)).execute((X,))
    assert torch.equal(values, X.topk(2).values)
    assert torch.equal(indices, X.topk(2).indices)


def test_guide_conversion_with_more_attributes() -> None:
    """Section 4: a conversion may add to the attributes; they are in the file."""

    @register_op("custom.fused_gate")
    def convert_my_custom_op(node_info: NodeInfo) -> OpNode:
        """Custom conversion with extra processing."""
        return OpNode(
            name=node_info.name,
            op_type="my_custom_op",
            inputs=node_info.input_metas,
            outputs=node_info.output_metas,
            attrs={**node_info.attrs, "extra_info": "custom_value"},
        )

    ir = captured(Gated().eval(), X)
    assert ir.node("fused_gate").attrs == {"scale": 1.0, "extra_info": "custom_value"}
    with pytest.raises(ExecutionError, match=r"no executor for my_custom_op \(node 'fused_gate'\)"):
        IRExecutor(ir)


def test_guide_node_info() -> None:
    """Section 4.1: NodeInfo has the documented fields, filled in."""
    seen: list[NodeInfo] = []

    @register_op("custom.fused_gate")
    def look(node_info: NodeInfo) -> OpNode:
        seen.append(node_info)
        return OpNode(
            node_info.name, "custom.fused_gate", node_info.input_metas, node_info.output_metas, node_info.attrs
        )

    captured(Gated().eval(), X)
    documented = ["name", "op", "target", "args", "kwargs", "input_metas", "output_metas", "attrs"]
    assert [field.name for field in fields(NodeInfo)] == documented
    (info,) = seen
    assert (info.name, info.op) == ("fused_gate", "call_function")
    assert info.target is torch.ops.custom.fused_gate.default
    assert [str(argument) for argument in info.args] == ["linear", "x"]
    assert info.kwargs == {}
    assert [(meta.name, meta.shape, meta.dtype) for meta in info.input_metas] == [
        ("linear", (3, 4), "float32"),
        ("x", (3, 4), "float32"),
    ]
    assert [meta.name for meta in info.output_metas] == ["fused_gate"]
    assert info.attrs == {"scale": 1.0}


def test_guide_debugging() -> None:
    """Section 7.2: registered functions can be looked up; others return None."""
    assert get_conversion_fn("my_custom_op") is None
    assert get_execution_fn("my_custom_op") is None

    @register_executor("my_custom_op")
    def execute(inputs: Any, attrs: Any) -> Any:
        return inputs

    assert get_execution_fn("my_custom_op") is execute
    assert get_conversion_fn("my_custom_op") is None
    assert "my_custom_op" in list_registered_ops()["execution"]


def test_nothing_need_be_registered() -> None:
    """Section 1: ATen operators, and those of torch.library, are captured and run without any of this."""
    model = Gated().eval()
    ir = captured(model, X)
    assert ops(ir)[1] == "custom.fused_gate.default"
    assert verdict(ir, model, X).is_valid


# -- look-up ----------------------------------------------------------------------------------------------------------


def test_look_up_order() -> None:
    """The exact op_type first, then the name without overload, then any pattern with the same base."""

    def any_overload(inputs: Any, attrs: Any) -> Any: ...
    def base(inputs: Any, attrs: Any) -> Any: ...
    def exact(inputs: Any, attrs: Any) -> Any: ...

    register_executor("tests.op.Other")(any_overload)
    assert get_execution_fn("tests.op.Tensor") is any_overload
    assert get_execution_fn("tests.op") is any_overload
    register_executor("tests.op")(base)
    assert get_execution_fn("tests.op.Tensor") is base
    register_executor("tests.op.Tensor")(exact)
    assert get_execution_fn("tests.op.Tensor") is exact
    assert get_execution_fn("tests.op.Scalar") is base
    assert get_execution_fn("tests.op.Other") is any_overload
    for stranger in ("tests.other", "tests.op_.Tensor", "op.Tensor", "tests"):
        assert get_execution_fn(stranger) is None


def test_a_held_name_stays_with_its_holder() -> None:
    """Another function under a taken name is an error that names the existing one; the same one again is allowed."""

    def first(inputs: Any, attrs: Any) -> Any: ...
    def second(inputs: Any, attrs: Any) -> Any: ...

    for register, find in ((register_executor, get_execution_fn), (register_op, get_conversion_fn)):
        register("tests.held")(first)
        register("tests.held")(first)
        with pytest.raises(RegistryError, match=r"for 'tests\.held' is already tests\.test_registry\..*\.first"):
            register("tests.held")(second)
        assert find("tests.held") is first


def test_lambdas_are_told_apart() -> None:
    """Two lambdas are two functions, although their names are equal."""
    register_executor("tests.held")(lambda inputs, attrs: inputs)
    with pytest.raises(RegistryError):
        register_executor("tests.held")(lambda inputs, attrs: inputs[::-1])


def test_a_module_may_be_run_again() -> None:
    """A function that is redefined in the same place replaces the old one, as in notebooks and reloads."""

    def define() -> Callable[..., Any]:
        @register_executor("tests.again")
        def execute(inputs: Any, attrs: Any) -> Any:
            return inputs

        return execute

    first, second = define(), define()
    assert first is not second
    assert get_execution_fn("tests.again") is second


# -- what registered functions may do ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["aten.relu.default", "aten.relu"])
def test_executors_override_aten(pattern: str) -> None:
    """An executor for an ATen operator is called instead of the operator (section 8.1)."""
    seen: list[dict[str, Any]] = []

    @register_executor(pattern)
    def leaky(inputs: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
        seen.append(attrs)
        return [torch.where(inputs[0] > 0, inputs[0], inputs[0] * 0.5)]

    ir = captured(module(lambda self, x: x.relu()), X)
    assert torch.equal(IRExecutor(ir, {})(X), torch.where(X > 0, X, X * 0.5))
    assert seen == [{}]


def test_executors_get_inputs_in_order_and_torch_attributes() -> None:
    """Inputs have the node's order, attributes their names: torch objects, lists, and sizes as numbers."""
    seen: list[tuple[list[Tensor], dict[str, Any]]] = []

    @register_executor("aten.full.default")
    def fill(inputs: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
        seen.append((inputs, dict(attrs)))
        size = attrs.pop("size")  # an executor may modify its attributes
        return [torch.full(size, attrs["fill_value"], dtype=attrs["dtype"])]

    model = module(lambda self, x: torch.full((x.shape[0], 2), 3.0, dtype=torch.float64) + x.sum())
    executor = IRExecutor(captured(model, X, dynamic_shapes=({0: torch.export.Dim("batch")},)), {})
    for count in (3, 5):
        x = torch.randn(count, 4)
        assert torch.equal(executor(x), model(x))
    (inputs, attrs), (_, later) = seen
    assert inputs == []
    assert (attrs["size"], later["size"]) == ([3, 2], [5, 2])
    assert (attrs["dtype"], attrs["device"]) == (torch.float64, torch.device("cpu"))


def test_conversions_see_every_overload() -> None:
    """A conversion for a base name is used for all its overloads; the node keeps its origin and argument names."""

    @register_op("aten.add")
    def convert(info: NodeInfo) -> OpNode:
        return OpNode(
            info.name, f"mine.add.{info.target._overloadname}", info.input_metas, info.output_metas, info.attrs
        )

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.add(x, x, alpha=2) + 1

    ir = captured(module(forward), X)
    assert ops(ir) == ["mine.add.Tensor", "mine.add.Tensor"]
    assert (ir.nodes[0].args, ir.nodes[0]["alpha"]) == (("self", "other"), 2)
    assert ir.nodes[0].origin.source.startswith("tests/test_registry.py:")


@pytest.mark.parametrize("result", [None, "aten.relu.default", []])
def test_a_conversion_that_gives_no_node(result: Any) -> None:
    """A conversion that returns something else is an error that names the operator."""
    register_op("aten.relu")(lambda info: result)
    with pytest.raises(
        ConversionError, match=r"the conversion registered for aten\.relu\.default returned .*, not an OpNode"
    ):
        captured(module(lambda self, x: x.relu()), X)


def test_an_executor_that_raises() -> None:
    """An error inside an executor names the node; the executor's own exception is the cause."""

    @register_executor("tests.broken")
    def broken(inputs: Any, attrs: Any) -> Any:
        raise LookupError("not today")

    with pytest.raises(ExecutionError, match=r"OpNode\('n', 'tests\.broken'\): not today") as caught:
        IRExecutor(node("n", "tests.broken"))(X)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("results", [[], [X, X], None, 3])
def test_an_executor_that_gives_the_wrong_number(results: Any) -> None:
    """An executor must return as many tensors as its node has outputs."""
    register_executor("tests.wrong")(lambda inputs, attrs: results)
    with pytest.raises(ExecutionError, match=r"OpNode\('n', 'tests\.wrong'\)"):
        IRExecutor(node("n", "tests.wrong"))(X)


def test_an_executor_may_give_a_bare_tensor() -> None:
    """The guide requires a list; a single tensor is treated as a list of one."""
    register_executor("tests.bare")(lambda inputs, attrs: inputs[0] * 2)
    assert torch.equal(IRExecutor(node("n", "tests.bare"))(X)[0], X * 2)
