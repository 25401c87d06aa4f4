"""Settings of the process that several threads change: restored by the last, also in a forked child."""

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from torch_ir import extract_ir, to_opset
from torch_ir.capture.instrument import exclusive
from torch_ir.capture.program.functional import functionalised
from torch_ir.ir.graph.shared_switch import SharedSwitch
from torch_ir.ops.fast_paths import plain_attention
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.shared_by_threads import decomposing
from torch_ir.ops.torch_internals import LIST_COMPOSITES

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def switch() -> tuple[dict[str, str], SharedSwitch]:
    setting = {"value": "before"}
    return setting, SharedSwitch(lambda: setting["value"], lambda value: setting.update(value=value), lambda _: "set")


def test_the_last_one_restores_the_setting() -> None:
    setting, shared = switch()
    shared.__enter__()
    with shared:
        assert setting["value"] == "set"
    assert setting["value"] == "set"
    shared.__exit__(None, None, None)
    assert setting["value"] == "before"


def test_a_setting_that_was_changed_meanwhile_is_kept() -> None:
    setting, shared = switch()
    with shared:
        setting["value"] = "of the user"
    assert setting["value"] == "of the user"


@contextmanager
def held(context: object) -> Iterator[None]:
    """Hold a context in another thread."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with context:  # type: ignore[attr-defined]  # a context manager
            inside.set()
            leave.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def status_of_child(work: object) -> int:
    """Run a function in a forked child; return its exit code, or the signal that ended it after a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        import signal

        signal.alarm(60)
        os._exit(0 if work() else 3)  # type: ignore[operator]  # a function
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@needs_fork
def test_a_forked_child_has_the_settings_of_the_user() -> None:
    """Not those that a thread of its parent had set."""
    before = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    torch.set_default_dtype(torch.float64)
    try:
        with held(NeutralState()), held(plain_attention()):
            assert torch.get_default_dtype() is torch.float32
            found = status_of_child(
                lambda: (
                    (torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()) == (torch.float64, before[1])
                )
            )
        assert found == 0
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(before[0])


@needs_fork
def test_a_forked_child_can_capture_while_a_thread_holds_the_lock() -> None:
    """Also before that thread has changed anything, or while its capture runs in a child."""
    model = nn.Linear(3, 3, device="meta").eval()
    with held(exclusive()):
        assert status_of_child(lambda: extract_ir(model, (torch.empty(2, 3, device="meta"),))) == 0


def test_operators_are_listed_once_in_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that decomposes; others list them as ever, and afterwards this one does."""
    owner, name = LIST_COMPOSITES
    listed: list[int] = []
    monkeypatch.setattr(owner, name, lambda: listed.append(threading.get_ident()))

    def call() -> None:
        getattr(owner, name)()

    with decomposing():
        call(), call()
        other = threading.Thread(target=lambda: (call(), call()))
        other.start()
        other.join()
    call(), call()
    here, there = threading.get_ident(), listed[1]
    assert there != here
    assert listed == [here, there, there, here, here]


def test_operators_are_listed_once_to_functionalise_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of some thirty namespaces."""
    owner, name = LIST_COMPOSITES
    list_composites, listed = getattr(owner, name), []
    monkeypatch.setattr(owner, name, lambda: (listed.append(name), list_composites()))
    program = torch.export.export(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), (torch.ones(2, 2),))
    listed.clear()
    functionalised(program)
    assert listed == [name]


def test_threads_decompose_one_after_the_other() -> None:
    """Torch keeps the modes of a recording for the whole process; another thread's made rules of torch fail."""
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU(), nn.Softmax(-1)).eval()
    ir = extract_ir(model, (torch.randn(2, 4),), strict=False)
    start, reports = threading.Barrier(3), []

    def decompose() -> None:
        start.wait(60)
        reports.extend(to_opset(ir, "core-aten")[1] for _ in range(10))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=decompose) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(reports) == 30
    assert all(report.is_complete for report in reports), [str(report) for report in reports if not report.is_complete]
