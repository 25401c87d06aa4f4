"""What Python reads of values is answered during the recording, and guarded in the graph."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from tests.asserting_code import asserts
from torch_ir import IR, CaptureWarning, GuardError, IRExecutor, extract_ir

X = torch.tensor([[0.5, -1.0, 2.0, 3.0], [1.0, 1.5, -2.0, 0.25], [4.0, 0.0, 1.0, -0.5]])


class Net(nn.Module):
    """Calls a function of itself and its input."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.0))
        self.register_buffer("count", torch.tensor(2))
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def captured(function: Callable[[Any, Tensor], Any], **options: Any) -> tuple[Net, IR]:
    model = Net(function).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        return model, IR.from_json(extract_ir(model, (X,), strict=False, **options).to_json())


def check(model: Net, ir: IR, x: Tensor = X) -> None:
    """Compare the graph with eager on these inputs and the model's weights."""
    held = {tensor.key for tensor in ir.params}  # torch.export in strict mode drops what is not read
    weights = {name: value.clone() for name, value in model.state_dict().items() if name in held}
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(IRExecutor(ir, weights)(x), expected)


def op_types(ir: IR) -> list[str]:
    return [node.op_type for node in ir.nodes]


NUMBERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a product": lambda net, x: x * net.scale.item(),
    "arithmetic": lambda net, x: x * (2 * net.scale.item() + net.count.item() // 2),
    "of the input": lambda net, x: x / x.abs().max().item(),
    "in a new tensor": lambda net, x: torch.tensor([net.scale.item(), 1.0]).sum() + x,
    "twice": lambda net, x: x * net.scale.item() + net.scale.item(),
    "of a list": lambda net, x: x * net.scale.reshape(1).tolist()[0],
    "returned": lambda net, x: (net.scale.item(), x),
    "a truth": lambda net, x: x * (net.count > 1).item(),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_stays_a_symbol_until_python_needs_it(name: str) -> None:
    """The graph runs on other values, without a guard for those at capture."""
    model, ir = captured(NUMBERS[name])
    check(model, ir)
    model.scale.fill_(-1.25)
    model.count.fill_(5)
    check(model, ir, X + 7)


def test_a_number_has_the_bytes_of_torch_export() -> None:
    function = NUMBERS["of the input"]
    assert captured(function)[1].to_json() == captured(function, capture="export")[1].to_json()


def test_an_unread_number_leaves_nothing() -> None:
    assert op_types(captured(lambda net, x: (net.scale.item(), x)[1])[1]) == []


def _branch(net: Any, x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def _compared(net: Any, x: Tensor) -> Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


@pytest.mark.parametrize("function", [_branch, _compared])
def test_a_branch_is_guarded_by_its_outcome_alone(function: Any) -> None:
    model, ir = captured(function)
    assert "captured_by" not in ir.extensions
    check(model, ir)
    check(model, ir, X + 1)  # another sum with the same outcome
    with pytest.raises(GuardError, match=r"test_data_queries\.py:\d+ branches on data"):
        IRExecutor(ir, model.state_dict())(-X)


@pytest.mark.parametrize("function", [_branch, _compared])
def test_both_branches_are_explored(function: Any) -> None:
    model, ir = captured(function, explore=4)
    check(model, ir)
    check(model, ir, -X)


def test_a_branch_on_constants_has_no_guard() -> None:
    """Nothing but the model's own numbers decides it."""

    def forward(net: Any, x: Tensor) -> Tensor:
        steps = torch.arange(4)
        steps[1] = 7
        return x.sum(torch.arange(x.dim()).tolist()) if steps.max() == 7 else x

    model, ir = captured(forward)
    check(model, ir)
    assert not any(op.startswith("torch_ir.") for op in op_types(ir))


def _swallowed(net: Any, x: Tensor) -> Tensor:
    try:
        if x.sum() > 0:
            return x + 1
    except Exception:
        return x * 100
    return x - 1


def _suppressed(net: Any, x: Tensor) -> Tensor:
    scale = 100.0
    with contextlib.suppress(Exception):
        scale = float(x.max())
    return x * scale


@pytest.mark.parametrize("function", [_swallowed, _suppressed])
def test_code_that_catches_exceptions_sees_none(function: Any) -> None:
    model, ir = captured(function)
    check(model, ir)


def test_an_assertion_is_part_of_the_graph_and_no_branch() -> None:
    model, ir = captured(asserts, explore=16)
    check(model, ir)
    for bad in ({"x": X * 1000}, {"scale": torch.tensor(1.0)}):
        weights = {**model.state_dict(), **{name: value for name, value in bad.items() if name == "scale"}}
        with pytest.raises(Exception, match=r"assertion of the model fails|holds only where"):
            IRExecutor(ir, weights)(bad.get("x", X))


def test_a_check_of_torch_is_kept() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        torch._check_tensor_all(x < 100)
        return x + 1

    model, ir = captured(forward)
    check(model, ir)
    with pytest.raises(Exception, match="holds only where"):
        IRExecutor(ir, model.state_dict())(X * 1000)


def _written(net: Any, x: Tensor) -> Tensor:
    y = x.clone()
    part = y[1:]
    part.mul_(2)
    y[0] += part[0]  # an operand that shares memory with the target
    if y[0, 0] > part[0, 0]:
        y.add_(part.sum())
    if part.max().item() > 10:
        part.zero_()
    return y


def _drawn(net: Any, x: Tensor) -> Tensor:
    first, second = torch.rand(3), torch.rand(3)
    if second.sum() > 100:  # evaluated before the first draw is
        return x
    return x + 0 * (first.sum() + second.sum())


@pytest.mark.parametrize("function", [_written, _drawn])
def test_values_are_those_at_the_time_of_the_query(function: Any) -> None:
    model = Net(function).eval()
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        ir = extract_ir(model, (X,), strict=False)
    assert torch.equal(state, torch.get_rng_state())
    check(model, ir)


def test_a_chance_of_nothing_is_no_branch() -> None:
    model, ir = captured(lambda net, x: x if torch.rand(()) < 0.0 else x + 1)
    check(model, ir)
    assert not any(op.startswith("torch_ir.") for op in op_types(ir))


def test_max_of_tensors_is_an_operator() -> None:
    model, ir = captured(lambda net, x: x / max(x.sum(), 1) + min([x.mean(), net.scale, 0.5]))
    check(model, ir)
    check(model, ir, -X)


def test_a_whole_number_is_guarded_as_one() -> None:
    model, ir = captured(lambda net, x: [x, -x, 2 * x][int(x.sum()) % 3])
    check(model, ir)
    check(model, ir, X + 0.001)
    with pytest.raises(GuardError, match="reads a number from the data"):
        IRExecutor(ir, model.state_dict())(X + 1)


def test_sizes_of_data_are_guarded_where_torch_export_fails() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        picked = x[x > 0]
        return picked.sum() if picked.shape[0] > 3 else picked.mean()

    model, ir = captured(forward)
    check(model, ir)
    check(model, ir, X * 2)
    with pytest.raises(GuardError, match="data-dependent size"):
        IRExecutor(ir, model.state_dict())(X.abs() + 1)


def test_a_model_without_values_names_the_line() -> None:
    model = Net(lambda net, x: [x, -x][int(x[0, 0].item())])  # the line
    with pytest.raises(Exception, match=r"test_data_queries\.py:\d+.*(number|values)"):
        extract_ir(model.to("meta").eval(), (X.to("meta"),))


def _copied(net: Any, x: Tensor) -> Tensor:
    try:
        y = copy.deepcopy(x)
    except Exception:
        return x * 100
    return y.add_(1) + x


def _in_numpy(net: Any, x: Tensor) -> Tensor:
    scale = 100.0
    with contextlib.suppress(Exception):
        scale = 1.0 + 0 * numpy.asarray(x.sum()).size
    return x * scale


@pytest.mark.parametrize("function", [_copied, _in_numpy])
def test_code_that_catches_exceptions_is_not_left_to_torch_export(function: Any) -> None:
    """Torch raises there, too, and the graph would be that of the other path."""
    model, ir = captured(function)
    check(model, ir)
