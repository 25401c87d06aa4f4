"""Writes to a possible view or copy, and inputs that share memory: equal to eager, or rejected."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.ambient_sweep import LAYOUTS, ROADS, Layout, layout_cases, outcomes, sample
from tests.proof import module
from torch_ir import IR, CaptureWarning, ConversionError, ExecutionError, IRExecutor, extract_ir
from torch_ir import compile as compiled
from torch_ir.capture.program import may_copy


def capture(model: nn.Module, *inputs: Any, road: str = "auto") -> IR:
    return extract_ir(model.eval(), inputs, strict=False, capture=road)


def test_sampled_layouts() -> None:
    counts, wrong = outcomes(sample([case for case in layout_cases() if case.road == "auto"], 14, seed=3))
    assert wrong == []
    assert counts["same"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("road", ROADS)
def test_every_layout(road: str) -> None:
    counts, wrong = outcomes([case for case in layout_cases() if case.road == road])
    assert wrong == []
    assert counts["same"] > counts["refused at capture"]


@pytest.mark.parametrize("operator", ["reshape", "contiguous", "flatten", "to channels last"])
def test_both_ways_to_capture_name_the_same_line(operator: str) -> None:
    """The line of the operator, in the same file, byte for byte."""
    from tests.ambient_sweep import OPERATORS, Writing

    model = Writing(OPERATORS[operator], "result of the input")
    quick, exported = (capture(model, torch.ones(2, 3, 4), road=road) for road in ROADS[:2])
    assert quick.fixed_layout.startswith("tests/ambient_sweep.py:") or "aten." in quick.fixed_layout
    assert quick.to_json() == exported.to_json()


@pytest.mark.parametrize("operator", ["reshape", "contiguous", "flatten", "clone", "to"])
def test_a_result_that_nothing_else_reads_fixes_no_layout(operator: str) -> None:
    """A layer in place after `flatten` runs on every layout, as it did."""
    case = Layout(operator, "own", "contiguous", "auto")
    counts, wrong = outcomes([case])
    assert wrong == []
    assert counts["same"] == len(LAYOUTS)


class _Offset(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.storage_offset() + 1)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("example", [torch.ones(4), torch.ones(8)[4:]])
def test_where_an_input_begins_in_its_memory(example: Tensor, road: str) -> None:
    ir = capture(_Offset(), example, road=road)
    assert torch.equal(IRExecutor(ir, {})(torch.ones(4)), _Offset()(torch.ones(4)))
    with pytest.raises(ExecutionError, match=r"has storage offset 4, .*clone the input"):
        IRExecutor(ir, {})(torch.ones(8)[4:])


UNTOLD: dict[str, Callable[[Tensor], Tensor]] = {
    "einsum": lambda x: torch.einsum("ij->ji", x),
    "unsafe_split": lambda x: torch.unsafe_split(x, 1)[0],
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.zeros(1))[0],
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
}


class _Untold(nn.Module):
    def __init__(self, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        y = self.operator(x)
        y.add_(1)
        return x * 2


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", UNTOLD)
def test_operators_that_do_not_say_that_they_share_memory(name: str, road: str) -> None:
    with pytest.raises(ConversionError, match="may share memory with its input"):
        capture(_Untold(UNTOLD[name]), torch.ones(2, 3), road=road)


@pytest.mark.parametrize("road", ROADS)
def test_operators_that_give_their_input_itself(road: str) -> None:
    x = torch.ones(2, 3)
    outcome = IRExecutor(capture(_Untold(lambda x: x.type_as(torch.zeros(1))), x, road=road), {}).run([x])
    assert torch.equal(outcome.outputs[0], torch.full((2, 3), 4.0))
    assert [value.tolist() for value in outcome.mutations.values()] == [torch.full((2, 3), 2.0).tolist()]


# -- one tensor for two inputs ---------------------------------------------------------------------------------------


class _Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2


SHARED: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "the same": lambda: (lambda x: (x, x))(torch.ones(4)),
    "a view": lambda: (lambda x: (x, x.view(2, 2).reshape(4)))(torch.ones(4)),
    "overlapping": lambda: (lambda x: (x[:4], x[2:]))(torch.ones(6)),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", SHARED)
def test_inputs_that_share_memory_are_refused(name: str, road: str) -> None:
    ir = capture(_Two(), torch.ones(4), torch.ones(4), road=road)
    with pytest.raises(ExecutionError, match=r"input 'y' shares memory with input 'x', to which the graph writes"):
        IRExecutor(ir, {})(*SHARED[name]())


def test_parts_that_do_not_overlap_run() -> None:
    ir, memory = capture(_Two(), torch.ones(4), torch.ones(4)), torch.ones(8)
    assert torch.equal(IRExecutor(ir, {})(memory[:4], memory[4:]), torch.full((4,), 2.0))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("name", SHARED)
def test_examples_that_share_memory_are_told(name: str, road: str) -> None:
    with pytest.warns(CaptureWarning, match="share memory, and forward writes to an input"):
        ir = capture(_Two(), *SHARED[name](), road=road)
    outcome = IRExecutor(ir, {}).run([torch.ones(4), torch.ones(4)])
    assert torch.equal(outcome.outputs[0], torch.full((4,), 2.0))
    assert [value.tolist() for value in outcome.mutations.values()] == [[2.0] * 4]


class _Reads(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


@pytest.mark.parametrize("road", ROADS)
def test_one_tensor_for_two_inputs_that_are_only_read(road: str) -> None:
    x = torch.ones(4)
    assert torch.equal(IRExecutor(capture(_Reads(), x, x, road=road), {})(x, x), torch.full((4,), 2.0))


class _Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1)
        return x * self.weight + self.total


@pytest.mark.parametrize("road", ROADS)
def test_an_input_that_is_a_parameter(road: str) -> None:
    model, fresh = _Held().eval(), _Held()
    ir = capture(model, model.weight, road=road)
    assert torch.equal(IRExecutor(ir, model.state_dict())(model.weight), fresh(fresh.weight))


def test_an_input_that_is_a_buffer_which_changes() -> None:
    model = _Held().eval()
    ir, weights = capture(model, torch.zeros(4)), model.state_dict()
    with pytest.raises(ExecutionError, match=r"input 'x' shares memory with weight 'total'"):
        IRExecutor(ir, weights)(weights["total"])


def test_back_ends_refuse_shared_inputs() -> None:
    ir = capture(_Two(), torch.ones(4), torch.ones(4))
    x = torch.ones(4)
    with pytest.raises(ExecutionError, match="shares memory with input 'x'"):
        compiled(ir, {}, backend="torch")(x, x)


@pytest.mark.parametrize("strided", [torch.ones(1, 4).expand(3, 4), torch.ones(4, 3).t()])
def test_a_second_example_keeps_its_strides(strided: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ir = capture(_Reads(), strided, strided, road="export")
    assert ir.graph_inputs[0].stride == ir.graph_inputs[1].stride


def test_many_writes_to_one_tensor_are_not_compared_with_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a result may be a copy: before, each read was compared with every earlier write."""
    compared = list[int]()
    monkeypatch.setattr(may_copy.Sharing, "_between", lambda *_: compared.append(1))

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        out = torch.zeros(50, 4)
        for row in range(50):
            out[row] = x[row] * 2
        return out

    capture(module(forward), torch.ones(50, 4))
    assert compared == []
