"""Questions about inputs that no graph can ask: answered as eager does at capture, and guarded in every run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_ir
from torch_ir.errors import ExecutionError, ExportError, GuardError, TorchIRError, WeightLoadError

CAPTURES = ("auto", "export", "record")


class Asking(nn.Module):
    """`x * 3` if the answer is True, else `x + 1`."""

    def __init__(self, question: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.question = question

    def forward(self, x: Tensor) -> Tensor:
        return x * 3 if self.question(x) else x + 1


def _of_grad() -> Tensor:
    x = torch.ones(3, requires_grad=True)
    x.grad = torch.ones(3)
    return x


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3)


def _pair(x: Tensor) -> Tensor:
    return x.as_strided((3,), (1,))


QUESTIONS: dict[str, tuple[Callable[[Tensor], bool], Callable[[], Tensor]]] = {
    "requires_grad": (lambda x: x.requires_grad, lambda: torch.ones(3, requires_grad=True)),
    "isinstance": (lambda x: isinstance(x, nn.Parameter), lambda: nn.Parameter(torch.ones(3), False)),
    "grad_fn": (lambda x: x.grad_fn is not None, lambda: torch.ones(3, requires_grad=True) * 1),
    "is_leaf": (lambda x: not x.is_leaf, lambda: torch.ones(3, requires_grad=True) * 1),
    "grad": (lambda x: x.grad is not None, _of_grad),
    "_base": (lambda x: x._base is not None, lambda: _pair(torch.ones(3))),
    "is_inference": (lambda x: x.is_inference(), _inference),
    "is_shared": (lambda x: x.is_shared(), lambda: torch.ones(3).share_memory_()),
}


def _captured(model: nn.Module, x: Tensor, capture: str) -> torch_ir.IR:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch_ir.extract_ir(model.eval(), (x,), strict=False, capture=capture)


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", QUESTIONS)
def test_an_input_that_answers_otherwise_is_refused(name: str, capture: str) -> None:
    """`x * 3 if x.requires_grad else x + 1`, captured on a plain tensor."""
    question, other = QUESTIONS[name]
    _check_refused(Asking(question).eval(), other, capture)


@pytest.mark.parametrize("capture", CAPTURES)
def test_counting_the_writes_to_an_input_is_refused(capture: str) -> None:
    """`x._version` depends on what happened to the input before."""
    with pytest.raises(TorchIRError, match="reads '_version' of an input, which no graph can know"):
        _captured(Asking(lambda x: x._version > 0), torch.ones(3), capture)


class AskingForClass(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 3 if type(x) is nn.Parameter else x + 1


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_comparison_of_classes_is_guarded(capture: str) -> None:
    """`type(x) is nn.Parameter` cannot be seen during a run, but in the code."""
    _check_refused(AskingForClass().eval(), lambda: nn.Parameter(torch.ones(3), False), capture)


def _check_refused(model: nn.Module, other: Callable[[], Tensor], capture: str) -> None:
    """Check that a graph that was captured on a plain tensor refuses another, in runs and in verification."""
    ir = _captured(model, torch.ones(3), capture)
    given = other()
    with torch.no_grad():
        assert torch.equal(torch_ir.IRExecutor(ir)(torch.ones(3)), model(torch.ones(3)))
        assert not torch.equal(model(given), model(torch.ones(3)))
    with pytest.raises(GuardError, match="at capture it was"):
        torch_ir.IRExecutor(ir)(given)
    passed, report = torch_ir.verify_ir_with_state_dict(ir, {}, model, (given,))
    assert not passed
    assert "at capture it was" in str(report)
    passed, _ = torch_ir.verify_ir_with_state_dict(ir, {}, model, (torch.ones(3),))
    assert passed


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", QUESTIONS)
def test_an_example_that_answers_otherwise_is_kept_or_refused(name: str, capture: str) -> None:
    """The same, captured on a tensor for which the answer is True."""
    question, other = QUESTIONS[name]
    model = Asking(question).eval()
    given = other()
    refusal = nullcontext() if name == "requires_grad" else suppress(TorchIRError)
    ir = None
    with refusal:
        ir = _captured(model, given, capture)
    if ir is None:
        return
    with torch.no_grad():
        assert torch.equal(torch_ir.IRExecutor(ir)(given), model(given))
    with pytest.raises(GuardError, match="at capture it was"):
        torch_ir.IRExecutor(ir)(torch.ones(3))


def test_the_guard_is_in_every_form_of_the_graph(tmp_path: Any) -> None:
    """A file, an optimised graph, a torch module and Python source have the guard."""
    ir = _captured(Asking(QUESTIONS["requires_grad"][0]), torch.ones(3), "auto")
    ir.save(tmp_path / "asking.json")
    loaded = torch_ir.IR.load(tmp_path / "asking.json")
    better, _ = torch_ir.optimize(loaded, "full")
    trained = torch.ones(3, requires_grad=True)
    for run in (torch_ir.IRExecutor(better), torch_ir.to_torch(better, {})):
        assert torch.equal(run(torch.ones(3)), torch.full((3,), 2.0))
        with pytest.raises(GuardError, match="requires_grad"):
            run(trained)
    source = torch_ir.to_python(better)
    space: dict[str, Any] = {"__name__": "written"}
    exec(compile(source, "written.py", "exec"), space)
    net = next(value for name, value in space.items() if name == "Net" or name == better.model_name)()
    assert torch.equal(net(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(ValueError, match="requires_grad"):
        net(trained)


def test_questions_about_weights_need_no_guard() -> None:
    """`self.w.requires_grad` is a property of the captured model."""

    class OfWeight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if self.w.requires_grad and isinstance(self.w, nn.Parameter) else x + 1

    ir = _captured(OfWeight(), torch.ones(3), "auto")
    assert [node.op_type for node in ir.nodes] == ["aten.mul.Tensor"]


class Doubled(Tensor):
    """`relu` of it is twice as large."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in (torch.relu, Tensor.relu) else result


class Odd(Tensor):
    """Has another `relu`, without `__torch_function__`."""

    def relu(self) -> Tensor:
        return super().relu() * 3


class Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x.relu() + self.w.relu()


@pytest.mark.parametrize("kind", [Doubled, Odd])
def test_a_class_of_tensors_that_changes_operators_is_refused(kind: type[Tensor]) -> None:
    """As example, as weight, as input of a run, and as weight of a run."""
    model = Rectified().eval()
    odd = torch.ones(3).as_subclass(kind)
    with torch.no_grad():
        assert not torch.equal(model(odd), model(torch.ones(3)))
    ir = _captured(model, torch.ones(3), "auto")
    with pytest.raises(ExecutionError, match=f"is a {kind.__name__}, whose own"):
        torch_ir.IRExecutor(ir, model.state_dict())(odd)
    with pytest.raises(WeightLoadError, match=f"is a {kind.__name__}, whose own"):
        torch_ir.IRExecutor(ir, {"w": odd})
    for capture in CAPTURES:
        with pytest.raises(ExportError, match=f"is a {kind.__name__}, a subclass of Tensor"):
            _captured(model, odd, capture)
    held = Rectified().eval()
    held.w = nn.Parameter(odd)
    for capture in CAPTURES:
        with pytest.raises(ExportError, match=f"is a {kind.__name__}, a subclass of Tensor"):
            _captured(held, torch.ones(3), capture)


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * getattr(x, "scale", 1.0)


@pytest.mark.parametrize("capture", CAPTURES)
def test_an_attribute_of_an_example_that_forward_reads_is_refused(capture: str) -> None:
    """The graph would have the value of one example, or none; other attributes do not matter."""
    x = torch.ones(3)
    vars(x)["note"] = "not read"
    assert _captured(Scaled().eval(), x, capture).nodes
    vars(x)["scale"] = 3.0
    with pytest.raises(ExportError, match="'scale', a Python attribute of an input"):
        _captured(Scaled().eval(), x, capture)


class Prepared(Asking):
    """A model whose own `__call__` replaces the data of its input before forward runs."""

    def __call__(self, x: Tensor) -> Any:
        return super().__call__(x.data)


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("not today")


def test_a_call_of_the_models_class_is_part_of_the_model() -> None:
    """`x.data` is followed in a `__call__` that the class defines, as in forward."""
    model, x = Prepared(lambda x: x.dim() == 1).eval(), torch.arange(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ir = torch_ir.extract_ir(model, (x,), strict=False, capture="export")
    assert torch.equal(torch_ir.IRExecutor(ir)(x), x * 3)


@pytest.mark.parametrize("kind", [Asking, Failing])
def test_the_class_of_the_model_is_not_changed_by_a_capture(kind: type[nn.Module]) -> None:
    """The patch of its `__call__` is removed, also after an error in forward."""
    model = kind(lambda x: x.dim() == 1) if kind is Asking else kind()
    with suppress(TorchIRError):
        torch_ir.extract_ir(model.eval(), (torch.ones(3),), strict=False, capture="export")
    assert "__call__" not in vars(kind)
