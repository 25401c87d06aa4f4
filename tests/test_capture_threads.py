"""Capture in a shared process: threads that capture, other threads, captures inside a forward."""

import functools
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import nn

import torch_ir
from tests.torch_state import torch_state, untouched
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.errors import CaptureWarning, TorchIRError
from torch_ir.ops import shared_by_threads
from torch_ir.ops.fast_paths import plain_attention, uncompiled


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class Strided(Plain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * y.stride()[0] if y.is_contiguous() else y


class Mapped(nn.Module):
    """torch.export captures it: the quick recorder does not cover vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(self.inner)(x)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Plain() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _blank(kind: type[nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return kind().eval()


def _extract(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> str:
    return torch_ir.extract_ir(model, inputs, **options).to_json()


def _jobs() -> dict[str, Callable[[], str]]:
    """Captures of several kinds, each with a separate model."""
    blank = torch.empty(3, 4, device="meta")
    torch.manual_seed(0)
    real, x = Plain().eval(), torch.randn(3, 4)
    batch = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    return {
        "quick": functools.partial(_extract, _blank(Plain), blank),
        "strided": functools.partial(_extract, _blank(Strided), blank),
        "folded": functools.partial(_extract, _blank(Layers), blank, blocks="function"),
        "blank record": functools.partial(_extract, _blank(Plain), blank, capture="record"),
        "real record": functools.partial(_extract, real, x, capture="record", strict=False),
        "mapped": functools.partial(_extract, _blank(Mapped), blank),
        "open": functools.partial(_extract, _blank(Plain), blank, dynamic_shapes=batch),
    }


def _in_threads(*works: Callable[[], None]) -> None:
    """Run each in a thread; the first error of any is raised here."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# -- threads that capture --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_four_threads_write_the_bytes_that_one_would(turns: int) -> None:
    """Captures of several kinds in four threads, each of the same bytes as alone; torch is as it was."""
    shared = _jobs()
    alone = {name: job() for name, job in shared.items()}

    def work(own: dict[str, Callable[[], str]]) -> None:
        quick, slow = list(own)[:4], dict(zip((3, 12, 24), list(own)[4:], strict=True))
        for turn in range(turns):
            name = slow.get(turn, quick[turn % 4])
            assert own[name]() == alone[name], name

    with untouched():
        _in_threads(*(functools.partial(work, jobs) for jobs in (shared, shared, _jobs(), _jobs())))


def test_a_thread_of_forward_is_not_recorded_unseen() -> None:
    """Computations in a thread of forward are not traced: the graph has a placeholder there."""

    class Threaded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: made.append(x.sin()))
            thread.start()
            thread.join()
            return made[0] + x

    with untouched(), pytest.warns(CaptureWarning, match="captured by recording|opaque"):
        ir = torch_ir.extract_ir(Threaded().eval(), (torch.empty(3, device="meta"),))
    assert [node.op_type for node in ir.nodes] == ["opaque.Threaded", "aten.add.Tensor"]


def test_a_capture_in_a_thread_of_forward_is_refused() -> None:
    """It would wait for the capture that waits for it."""
    inner, found = _blank(Plain), SimpleQueue[str]()  # a capture puts lists back as they were

    class Threaded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def work() -> None:
                try:
                    torch_ir.extract_ir(inner, (torch.empty(3, 4, device="meta"),))
                except TorchIRError as error:
                    found.put(str(error))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return x + 1

    with untouched():
        torch_ir.extract_ir(Threaded().eval(), (torch.empty(3, device="meta"),))
    assert "in a thread that forward started" in found.get_nowait()


# -- threads that do other things ------------------------------------------------------------------------------------


class Busy(nn.Module):
    """A slow forward, so that other threads run during a capture."""

    def __init__(self, inside: threading.Event, go_on: threading.Event) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.waits = lambda: (inside.set(), go_on.wait(60))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        self.waits()
        return y.relu()


_ROADS = [{}, {"capture": "export"}, {"capture": "record"}, {"dynamic_shapes": ({0: torch.export.Dim.AUTO},)}]


@pytest.mark.parametrize("options", _ROADS, ids=["quick", "export", "record", "open sizes"])
def test_other_threads_see_torch_as_it_was(options: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """Eager, vmap, grad, autocast, compiled code, strides, logs, warnings, stderr and Python's own functions."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Plain(), nn.Dropout()).eval(), torch.randn(3, 4)
    compiled = torch.compile(lambda value: model(value).relu().sum(), backend="eager", fullgraph=True)
    logger = logging.getLogger("torch.export")

    def everything() -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            cast = model(x)
        done = [
            model(x),
            cast,
            torch.vmap(model)(x),
            torch.func.grad(lambda value: model(value).sum())(x),
            torch.func.jvp(model, (x,), (x,))[1],
            compiled(x),
            [x.stride(), x.t().is_contiguous(), max(2, 3), math.pow(2, 3), type(math.pow(2, 3))],
            [torch.compiler.is_compiling(), torch.compiler.is_exporting()],
            len(nn.modules.module._global_forward_hooks),
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("something about LeafSpec", FutureWarning, stacklevel=1)
        print("words of another thread", file=sys.stderr)
        return [*done, [str(warning.message) for warning in caught], logger.isEnabledFor(logging.WARNING)]

    def same(one: Any, other: Any) -> bool:
        return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other

    inside, go_on, found = threading.Event(), threading.Event(), []
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    with torch.device("meta"):
        captured = Busy(inside, go_on).eval()
    before = everything()
    capfd.readouterr()

    def other() -> None:
        assert inside.wait(60)
        try:
            logger.warning("a record of another thread")
            found.extend(everything())
        finally:
            go_on.set()

    logger.addHandler(handler)
    try:
        with untouched():
            _in_threads(other, lambda: _extract(captured, torch.empty(3, 4, device="meta"), **options))
    finally:
        logger.removeHandler(handler)
    hooks = found.pop(8) - before.pop(8)
    assert hooks in (0, 1)  # one that does nothing in other threads
    assert [index for index, pair in enumerate(zip(before, found, strict=True)) if not same(*pair)] == []
    assert [record.getMessage() for record in records] == ["a record of another thread"]
    assert "words of another thread" in capfd.readouterr().err


def test_compiling_in_another_thread_waits_for_the_capture() -> None:
    """A function that was never compiled is compiled as ever, when the capture has ended."""
    inside, go_on = threading.Event(), threading.Event()
    with torch.device("meta"):
        captured = Busy(inside, go_on).eval()
    model, x = Mapped().eval(), torch.randn(3, 4)
    graphs: list[Any] = []

    def backend(module: Any, example: Any) -> Any:
        graphs.append(str(module.graph))
        return module.forward

    def compile_it() -> None:
        assert inside.wait(60)
        threading.Timer(0.2, go_on.set).start()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        assert torch.equal(compiled(x), model(x))

    with untouched():
        _in_threads(compile_it, lambda: _extract(captured, torch.empty(3, 4, device="meta"), capture="export"))
    assert len(graphs) == 1


def test_verification_in_threads_leaves_the_switches_alone() -> None:
    """The settings that verification shares with capture are reference-counted, in any order of threads."""

    def work(pause: float) -> None:
        with plain_attention(), uncompiled():
            time.sleep(pause)
            assert not torch.backends.mha.get_fastpath_enabled()

    with untouched():
        _in_threads(*(functools.partial(work, pause) for pause in (0.02, 0.0, 0.04, 0.01)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_forked_in_the_middle_of_a_capture_can_capture() -> None:
    """The child lacks the threads that would remove the patches and release the lock."""
    inside, go_on, model = threading.Event(), threading.Event(), _blank(Plain)
    with torch.device("meta"):
        captured = Busy(inside, go_on).eval()
    expected, status = _extract(model, torch.empty(3, 4, device="meta")), []
    before = torch_state()

    def fork() -> None:
        assert inside.wait(60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            same = torch_state() == before and _extract(model, torch.empty(3, 4, device="meta")) == expected
            os._exit(0 if same else 3)
        deadline = time.monotonic() + 300
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.02)
        status.append(ended)
        if not ended[0]:
            os.kill(child, 9)
            os.waitpid(child, 0)
        go_on.set()

    with untouched():
        _in_threads(fork, lambda: _extract(captured, torch.empty(3, 4, device="meta")))
    assert status[0][0], "the child hangs"
    assert os.waitstatus_to_exitcode(status[0][1]) == 0


# -- captures in a forward -------------------------------------------------------------------------------------------


class Nesting(nn.Module):
    """Capture another model in its forward, with a given method."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        inner, blank = [_blank(Plain)], torch.empty(3, 4, device="meta")
        self.capture = lambda: _extract(inner[0], blank, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        _FOUND.put(self.capture())
        return y.relu()


_FOUND: SimpleQueue[str] = SimpleQueue()  # a capture puts lists back as they were


def _all_found() -> list[str]:
    return [_FOUND.get() for _ in range(_FOUND.qsize())]


def first_difference(one: str, other: str) -> str:
    lines = zip(one.splitlines(), other.splitlines(), strict=False)
    return next((f"{line} / {its}" for line, its in lines if line != its), "")


@pytest.mark.parametrize("inner", _ROADS[:3], ids=["quick", "export", "record"])
@pytest.mark.parametrize("outer", [None, *_ROADS[:3]], ids=["eager", "in quick", "in export", "in record"])
def test_a_capture_in_a_forward_is_the_same_as_alone(outer: dict[str, Any] | None, inner: dict[str, Any]) -> None:
    """Both graphs are those of the models by themselves."""
    _all_found()
    alone = _extract(_blank(Plain), torch.empty(3, 4, device="meta"), **inner)
    with untouched():
        if outer is None:
            model, x = Nesting(**inner).eval(), torch.randn(3, 4)
            assert torch.equal(model(x), model.linear(x).relu())
        else:
            with torch.device("meta"):
                model = Nesting(**inner).eval()
            ir = torch_ir.extract_ir(model, (torch.empty(3, 4, device="meta"),), **outer)
            assert [node.op_type for node in ir.nodes] == ["aten.linear.default", "aten.relu.default"]
            assert ir.nodes[0].origin.module == "linear"
    assert {first_difference(alone, found) for found in _all_found()} == {""}


def test_a_capture_in_compiled_code() -> None:
    """torch.compile leaves the capture to Python, and the capture leaves torch.compile alone."""
    _all_found()
    model, x = Nesting().eval(), torch.randn(3, 4)
    alone = _extract(_blank(Plain), torch.empty(3, 4, device="meta"))
    with untouched():
        assert torch.equal(torch.compile(model, backend="eager")(x), model.linear(x).relu())
    assert _all_found()[0] == alone


# -- whatever ends a capture -----------------------------------------------------------------------------------------


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.linear, self.error = nn.Linear(4, 4), error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        with torch.no_grad():
            y.stride()
            raise self.error


@pytest.mark.parametrize("options", _ROADS, ids=["quick", "export", "record", "open sizes"])
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), RecursionError()], ids=repr)
def test_errors_leave_torch_and_the_model_as_they_were(error: BaseException, options: dict[str, Any]) -> None:
    """An interrupt is raised; everything else is a one-line error."""
    with torch.device("meta"):
        model = Failing(error).eval()
    held = {name: id(weight) for name, weight in model.named_parameters()}
    expected: Any = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else TorchIRError
    with untouched(), pytest.raises(expected):
        torch_ir.extract_ir(model, (torch.empty(3, 4, device="meta"),), **options)
    assert {name: id(weight) for name, weight in model.named_parameters()} == held
    assert shared_by_threads._tracing.acquire(blocking=False)
    shared_by_threads._tracing.release()


def test_an_interrupt_in_one_thread_leaves_another_to_capture() -> None:
    """The second capture waits for the first, which is interrupted."""
    with torch.device("meta"):
        failing = Failing(KeyboardInterrupt()).eval()
    model = _blank(Plain)
    alone = _extract(model, torch.empty(3, 4, device="meta"))

    def fail() -> None:
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                torch_ir.extract_ir(failing, (torch.empty(3, 4, device="meta"),))

    def go() -> None:
        for _ in range(20):
            assert _extract(model, torch.empty(3, 4, device="meta")) == alone

    with untouched():
        _in_threads(fail, go, fail, go)


def test_a_refusal_belongs_to_its_capture() -> None:
    """A model that catches the error of an operator is refused, and no other model with it."""

    class Catching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return x * float(x.sum())
            except Exception:
                return x

    plain = _blank(Plain)
    alone = _extract(plain, torch.empty(3, 4, device="meta"))

    def refused() -> None:
        for _ in range(50):
            with pytest.raises(NotCoveredError, match="depends on the data"):
                record_fast(Catching(), (torch.empty(3, device="meta"),), {})

    def taken() -> None:
        for _ in range(50):
            assert _extract(plain, torch.empty(3, 4, device="meta")) == alone

    with untouched():
        _in_threads(refused, taken)
