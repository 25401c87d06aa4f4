"""Capture ends in an IR or in one error with the source line, and restores the process."""

import gc
import logging
import multiprocessing
import os
import select
import signal
import sys
import warnings
from typing import Any

import pytest
import sympy  # noqa: F401  # the first import adds a filter of warnings
import torch
import torch.utils._pytree as pytree
from torch import nn

from tests.hostile_models import CASES, Case, X, state
from tests.hostile_models.state import Answer
from torch_ir import CaptureWarning, ExportError, IRExecutor, extract_ir
from torch_ir.capture.ladder import Step, climb
from torch_ir.errors import ConversionError
from torch_ir.ir import IR

IN_STRICT_MODE = "torch.export in strict mode"


class Good(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def extracted(case: Case, model: nn.Module) -> IR:
    return extract_ir(
        model,
        case.args,
        kwargs=case.kwargs,
        strict=False,
        capture="export",
        isolated=case.isolated,
        time_limit=case.time_limit,
    )


def process_state() -> dict[str, Any]:
    """The state that a capture changes and must restore."""
    loggers = ["torch", "torch.export", "torch._dynamo", "torch.fx.experimental.symbolic_shapes"]
    return {
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "device": torch.get_default_device(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "decision": torch.SymBool.__bool__,
        "call": nn.Module.__call__,
        "levels": [logging.getLogger(name).level for name in loggers],
        "filters": list(warnings.filters),
        "streams": (sys.stdout, sys.stderr),
        "hooks": (sys.excepthook, sys.getrecursionlimit()),
        "collector": gc.isenabled(),
        "folder": os.getcwd(),
        "children": multiprocessing.active_children(),
    }


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    """For any outcome: the process state is restored, and the next model is captured."""
    before = process_state()
    yield
    assert process_state() == before
    model = Good().eval()
    ir = extract_ir(model, (X,), strict=False)
    assert torch.equal(IRExecutor(ir, model.state_dict())(X), model(X))


def as_plain(value: Any) -> Any:
    """Return an object of the model's class, and the record that represents it, as a dict."""
    if isinstance(value, Answer):
        return vars(value)
    return dict(value) if isinstance(value, dict) else value


captured = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.captured_by])
diagnosed = pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.captured_by])


@captured
@pytest.mark.filterwarnings("ignore:captured by", "ignore:forward changes state")
def test_a_captured_model_computes_what_it_computes(name: str) -> None:
    """Other values of the same shapes, run from the file, yield the model's results too.

    Attributes that forward sets during capture are removed afterwards.
    """
    case = CASES[name]
    model = case.model().eval()
    held = {path: dict(vars(module)) for path, module in model.named_modules()}
    ir = IR.from_json(extracted(case, model).to_json())
    assert {path: dict(vars(module)) for path, module in model.named_modules()} == held
    assert ir.extensions.get("captured_by", "torch.export") == case.captured_by
    run = IRExecutor(ir, model.state_dict())
    for factor in (1.0, 0.7):
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t * factor, (case.args, case.kwargs))  # noqa: B023
        given = pytree.tree_map(lambda leaf: leaf, (args, kwargs))  # models may change their list arguments
        wanted, found = model(*args, **kwargs), run(*given[0], **given[1])
        leaves = [pytree.tree_leaves(as_plain(value)) for value in (wanted, found)]
        torch.testing.assert_close(leaves[1], leaves[0], rtol=0, atol=1e-6)


@diagnosed
def test_a_model_that_cannot_be_captured_is_diagnosed(name: str) -> None:
    """One line: the model's source line, the cause, and the usual remedy."""
    case = CASES[name]
    model = case.model().eval()
    held = dict(vars(model))
    with pytest.raises(ExportError) as caught:
        extracted(case, model)
    told = str(caught.value)
    assert all(word in told for word in case.words), told
    assert case.place in told
    assert "\n" not in told
    assert len(told) < 700
    assert vars(model) == held


def test_the_step_that_gave_the_graph_is_told_and_kept() -> None:
    """A warning names the capture method and why the first failed; the file contains it too."""
    case = CASES["ExactType"]
    with pytest.warns(CaptureWarning) as told:
        ir = extracted(case, case.model().eval())
    (warning,) = told
    assert str(warning.message).startswith(
        "captured by torch.export in strict mode, because torch.export cannot capture ExactType: "
        "tests/hostile_models/outside.py:"
    )
    assert warning.filename == __file__
    assert IR.from_json(ir.to_json()).extensions == {"captured_by": IN_STRICT_MODE}


@pytest.mark.filterwarnings("ignore:captured by")
def test_a_gpu_of_this_process_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchDynamo saves the random state of a visible GPU, which torch refuses in a forked process."""
    here = os.getpid()

    def random_state() -> torch.Tensor:
        if os.getpid() != here:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return torch.empty(0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", random_state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _: None)
    case = CASES["ExactType"]
    assert extracted(case, case.model().eval()).extensions["captured_by"] == IN_STRICT_MODE


def test_a_capture_that_succeeded_suggests_no_fix() -> None:
    """The warning says what torch.export could not do; how to rewrite the model is for captures that fail."""

    class Choice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return [x.sin(), x.cos()][int(x.sum()) % 2]

    with pytest.warns(CaptureWarning) as told:
        extract_ir(Choice().eval(), (X,), strict=False)
    message = str(told[0].message)
    assert message.endswith(": Python needs a number that depends on the data, for an index or a loop"), message


def test_a_model_on_meta_climbs_too() -> None:
    """Strict mode supports weights and inputs without values."""

    class Numpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.linear(x).detach().numpy())

    real = Numpy().eval()
    with pytest.warns(CaptureWarning, match="captured by torch.export in strict mode"):
        ir = extract_ir(Numpy().to("meta").eval(), (X.to("meta"),))
    assert [weight.name for weight in ir.weights] == ["linear.weight", "linear.bias"]
    torch.testing.assert_close(IRExecutor(ir, real.state_dict())(X), real(X))


def test_isolated_gives_the_same_graph() -> None:
    """In a child process or not, the file has the same bytes."""
    torch.manual_seed(0)
    model = Good().eval()
    assert (
        extract_ir(model, (X,), strict=False, isolated=True).to_json()
        == extract_ir(model, (X,), strict=False).to_json()
    )


def test_isolated_keeps_what_forward_does_outside_the_model_away() -> None:
    """Global state that a model writes during capture is unchanged here, and reported."""
    before = list(state.calls)
    with pytest.warns(CaptureWarning, match="forward changes state that the graph does not keep: 'calls' at"):
        extract_ir(state.GlobalState().eval(), (X,), strict=False, isolated=True)
    assert state.calls == before


# -- the ladder by itself ---------------------------------------------------------------------------------------------


def graph(name: str = "made") -> IR:
    ir = extract_ir(Good().eval(), (X,), strict=False)
    ir.model_name = name
    return ir


def fails(message: str, kind: type[Exception] = ExportError) -> Any:
    def capture() -> IR:
        raise kind(message)

    return capture


def ends_with(number: int) -> Any:
    def capture() -> IR:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal came too late")

    return capture


def test_the_first_step_that_works_is_taken() -> None:
    """Later methods are not tried, and there is no warning if the first succeeds."""
    assert climb([Step("M", "one", graph), Step("M", "two", fails("never"))]).extensions == {}
    with pytest.warns(CaptureWarning, match="^captured by two, because one cannot: why$"):
        ir = climb([Step("M", "one", fails("cannot: why")), Step("M", "two", graph, is_risky=True)])
    assert ir.extensions == {"captured_by": "two"}


def test_the_plain_failure_is_told_when_no_step_works() -> None:
    """Whatever later methods reported, the first error is raised, with its type."""
    steps = [Step("M", "one", fails("plain", ConversionError)), Step("M", "two", fails("odd"), is_risky=True)]
    with pytest.raises(ConversionError, match=r"^plain$"):
        climb(steps)
    with pytest.raises(ConversionError, match=r"^plain$"):
        climb(steps, isolated=True)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "crashed with SIGSEGV: invalid memory access"),
        (signal.SIGKILL, "crashed with SIGKILL: killed, possibly because the machine is out of memory"),
    ],
)
def test_a_crash_is_a_sentence(number: int, words: str) -> None:
    """A method that crashes does not affect the process, and the next one is tried."""
    with pytest.raises(ExportError, match=words):
        climb([Step("M", "one", ends_with(number), is_risky=True)])
    with pytest.warns(CaptureWarning, match=words):
        climb([Step("M", "one", ends_with(number), is_risky=True), Step("M", "two", graph)])


def test_a_step_that_exits_is_a_sentence() -> None:
    """Also without a signal."""
    with pytest.raises(ExportError, match=r"^cannot capture M: one exited with status 7"):
        climb([Step("M", "one", lambda: os._exit(7), is_risky=True)])


@pytest.mark.skipif(sys.platform != "linux", reason="only there can a child end with its parent")
def test_an_endless_step_ends_with_the_process_that_waits_for_it() -> None:
    """Also if that is killed, and can stop nothing any more."""
    reading, writing = os.pipe()

    def spin() -> IR:
        os.write(writing, b"started")
        while True:
            pass

    step = Step("M", "one", spin, is_risky=True)
    waiting = multiprocessing.get_context("fork").Process(target=climb, args=([step],))
    waiting.start()
    os.close(writing)
    assert os.read(reading, 7) == b"started"
    waiting.kill()
    waiting.join()
    assert select.select([reading], [], [], 60)[0], "the child still runs"
    assert os.read(reading, 1) == b""  # the last process that could write is gone
    os.close(reading)


def test_an_interrupt_is_the_users() -> None:
    """Ctrl-C is not a failure of a method; nothing else is tried."""
    with pytest.raises(KeyboardInterrupt):
        climb([Step("M", "one", fails("", KeyboardInterrupt)), Step("M", "two", graph)])


def _climb_in_a_worker(_: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return climb([Step("M", "one", fails("no")), Step("M", "two", graph, is_risky=True)]).model_name


def test_workers_that_may_have_no_children_capture_in_process() -> None:
    """The processes of a pool cannot fork once more; there, a risky step runs where it is."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(_climb_in_a_worker, [0]) == ["made"]


def _isolated_in_a_worker(_: int) -> str:
    with pytest.raises(ExportError) as raised:
        climb([Step("M", "one", graph)], isolated=True)
    return str(raised.value)


def test_workers_that_may_have_no_children_do_not_isolate() -> None:
    """A capture that was to run in a child only is refused there, not run in this process."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "this process cannot fork" in pool.map(_isolated_in_a_worker, [0])[0]
