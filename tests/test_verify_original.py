"""The reference of a verification is the user's model, with its parameters, memory and state, all restored."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.proof import captured, module, verdict
from torch_ir import IR, extract_ir, verify_ir_with_state_dict
from torch_ir.verify import model_state
from torch_ir.verify.model_state import ModelState

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Weighted(nn.Module):
    """A parameter, a buffer, a view of the buffer, and state in Python."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(4.0) + 1)
        self.register_buffer("all", torch.arange(4.0))
        self.tail = self.all[2:]
        self.calls, self.log, self.table = 0, [], {"n": 0}
        self._forward = forward

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)


def plus() -> IR:
    """x + w, whatever the model does."""
    return extract_ir(Weighted(lambda self, x: x + self.w).eval(), (X,), strict=False)


def reads_requires_grad(self: Any, x: Tensor) -> Tensor:
    return x - self.w if self.w.requires_grad else x + self.w


def reads_the_class(self: Any, x: Tensor) -> Tensor:
    return x - self.w if type(self.w) is nn.Parameter else x + self.w


def reads_a_view(self: Any, x: Tensor) -> Tensor:
    self.all.add_(1)
    return x + self.w + (self.tail.sum() - 5)


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return x + self.w * self.calls


def appends(self: Any, x: Tensor) -> Tensor:
    self.log.append(x)
    return x + self.w * len(self.log)


def remembers(self: Any, x: Tensor) -> Tensor:
    self.table["n"] += 1
    return x + self.w * self.table["n"]


def moves_its_data(self: Any, x: Tensor) -> Tensor:
    result = x + self.w
    self.w.data = self.w.data + 1
    return result


def writes_to_its_data(self: Any, x: Tensor) -> Tensor:
    result = x + self.w
    self.w.data.add_(1)
    return result


def replaces_its_parameter(self: Any, x: Tensor) -> Tensor:
    result = x + self.w
    self.w = nn.Parameter(self.w + 1)
    return result


WRONG = [
    reads_requires_grad,
    reads_the_class,
    reads_a_view,
    counts,
    appends,
    remembers,
    moves_its_data,
    writes_to_its_data,
    replaces_its_parameter,
]


@pytest.mark.parametrize("forward", WRONG, ids=lambda forward: forward.__name__)
@pytest.mark.parametrize("copied", [model_state.COPIED, 0], ids=["copied", "guarded"])
def test_a_graph_that_the_model_itself_does_not_follow(
    forward: Callable[..., Any], copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x + w differs from these models in one call or two; afterwards they are unchanged, object by object."""
    monkeypatch.setattr(model_state, "COPIED", copied)
    model = Weighted(forward)
    tensors = {name: (value, value.detach().clone()) for name, value in _tensors(model).items()}
    report = verdict(plus(), model, X)
    assert not report.is_valid, report
    assert (model.calls, model.log, model.table) == (0, [], {"n": 0})
    for name, value in _tensors(model).items():
        same, before = tensors[name]
        assert value is same
        assert torch.equal(value, before)
    assert model.w.requires_grad
    assert model.tail.untyped_storage().data_ptr() == model.all.untyped_storage().data_ptr()


def _tensors(model: Any) -> dict[str, Tensor]:
    return {"w": model.w, "all": model.all, "tail": model.tail}


def test_counters_that_do_not_matter_are_no_alarm() -> None:
    """State that changes with every call without affecting results is not a difference."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append(self.calls)
        return x + self.w

    report = verdict(plus(), Weighted(forward), X)
    assert report.is_valid, report
    assert report.notes == []


def test_a_model_that_may_be_called_once() -> None:
    """A second call that the model rejects is noted, not judged."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if self.calls:
            raise RuntimeError("used up")
        self.calls += 1
        return x + self.w

    report = verdict(plus(), Weighted(forward), X)
    assert report.is_valid, report
    assert "the model fails on a second call: used up" in report.notes


def first_result(self: Any, x: Tensor) -> Tensor:
    if not self.log:
        self.log.append(x + self.w)
    return self.log[0]


def first_result_of_a_shape(self: Any, x: Tensor) -> Tensor:
    return self.table.setdefault(tuple(x.shape), x + self.w)


def offset_of_the_first_call(self: Any, x: Tensor) -> Tensor:
    self.table.setdefault("offset", x.mean())
    return x + self.w + self.table["offset"] - x.mean()


@pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
@pytest.mark.parametrize("forward", [first_result, first_result_of_a_shape, offset_of_the_first_call])
def test_a_result_that_a_model_keeps_is_no_result_for_other_values(forward: Callable[..., Any]) -> None:
    """The second call has other values: such a model returns what belongs to the first ones."""
    report = verdict(extract_ir(Weighted(forward).eval(), (X,), strict=False), Weighted(forward), X)
    assert not report.is_valid
    assert "on a second call" in str(report.error_message)


def last_input(self: Any, x: Tensor) -> Tensor:
    if self.log and torch.equal(self.log[0], x):
        return self.log[1]
    self.log[:] = [x.clone(), x + self.w]
    return self.log[1]


def kept_over_weights(self: Any, x: Tensor) -> Tensor:
    if "w" not in self.table:
        self.table["w"] = self.w * 1
    return x + self.table["w"]


@pytest.mark.parametrize("forward", [last_input, kept_over_weights])
def test_a_result_that_a_model_may_keep(forward: Callable[..., Any]) -> None:
    """It belongs to the same values, or to weights alone."""
    report = verdict(plus(), Weighted(forward), X)
    assert report.is_valid, report


def test_a_second_call_with_the_same_values_where_no_others_are_possible() -> None:
    """The model rejects other values, and its second result differs."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not torch.equal(x, X):
            raise ValueError("other values")
        self.calls += 1
        return x + self.w * self.calls

    report = verdict(plus(), Weighted(forward), X)
    assert not report.is_valid
    assert "on a second call" in str(report.error_message)


def test_parameters_by_name() -> None:
    """`get_parameter` requires an nn.Parameter."""
    model = module(lambda self, x: x @ self.get_parameter("layer.weight"), layer=nn.Linear(4, 4))
    assert verdict(captured(model, X), model, X).is_valid


def test_state_that_a_hook_keeps() -> None:
    """State in closures of hooks is restored too."""
    seen: list[Any] = []
    model = module(lambda self, x: self.layer(x), layer=nn.Linear(4, 4))
    ir = captured(model, X)
    model.layer.register_forward_hook(lambda module, args, out: seen.append(out))
    assert verdict(ir, model, X).is_valid
    assert seen == []


def test_inputs_share_memory_as_given() -> None:
    """One tensor passed twice is one tensor to the model: writes to one are read from the other."""

    def forward(self: Any, x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    model = module(forward)
    ir = captured(model, X.clone(), X.clone())
    assert verdict(ir, model, X.clone(), X.clone()).is_valid
    x = X.clone()
    assert not verdict(ir, model, x, x).is_valid
    assert torch.equal(x, X)


def test_outputs_in_the_memory_of_a_buffer() -> None:
    """A returned buffer has the value of this call, also when the buffer is put back and called again."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.total += x.sum()
        return self.total  # type: ignore[no-any-return]

    model = module(forward, buffers={"total": torch.zeros(())})
    report = verdict(captured(model, X), model, X)
    assert report.is_valid, report
    assert float(model.total) == 0


def test_large_parameters_are_copied_only_when_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a limit, parameters are saved when an operator writes to them, and put back all the same."""
    monkeypatch.setattr(model_state, "COPIED", 0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = ModelState(model)
    assert not state.memory.copies
    with state.restored(), torch.no_grad():
        model[0].weight[1:].mul_(3)
        assert len(state.memory.copies) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# -- values of every kind ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "wrong"),
    [
        (lambda self, x: (3, 2.5), lambda self, x: (3, 2.0)),
        (lambda self, x: x.shape[0], lambda self, x: x.shape[1]),
        (lambda self, x: {"name": "a", "none": None}, lambda self, x: {"name": "b", "none": None}),
    ],
    ids=["numbers", "size", "string"],
)
def test_models_that_return_no_tensor(forward: Callable[..., Any], wrong: Callable[..., Any]) -> None:
    """Numbers and strings are compared as tensors are."""
    model = module(forward)
    assert verdict(captured(model, X), model, X).is_valid
    assert not verdict(captured(module(wrong), X), model, X).is_valid


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_secondary_results_that_nothing_reads(mode: str) -> None:
    """Torch predicts other sizes for auxiliary results of an EmbeddingBag than its kernel returns."""
    model = nn.EmbeddingBag(10, 4, include_last_offset=True, mode=mode).eval()
    inputs = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4, 8])
    report = verdict(captured(model, *inputs), model, *inputs)
    assert report.is_valid, report
    assert any("not judged, as it is unused" in note for note in report.notes)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_inputs(dtype: torch.dtype) -> None:
    model = module(lambda self, x: x.float() * 2)
    ir = captured(model, X.to(dtype))
    assert verdict(ir, model, X.to(dtype)).is_valid
    ir.node("mul").attrs["other"] = 3
    assert not verdict(ir, model, X.to(dtype)).is_valid


@pytest.mark.parametrize("is_parameter", [True, False], ids=["parameter", "buffer"])
def test_sparse_weights(is_parameter: bool) -> None:
    """Sparse weights are compared element by element, which torch.equal cannot."""
    weight = torch.eye(3).to_sparse()
    model = module(lambda self, x: torch.sparse.mm(self.weight, x))
    model.register_buffer("weight", weight) if not is_parameter else model.register_parameter(
        "weight", nn.Parameter(weight)
    )
    ir = extract_ir(model, (X,), strict=False)
    assert verdict(ir, model, X).is_valid
    other = {"weight": (2 * torch.eye(3)).to_sparse()}
    report = verify_ir_with_state_dict(ir, other, model, (X,))[1]
    assert "weight 'weight' differs from the model's" in str(report.error_message)
