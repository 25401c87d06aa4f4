"""Try the capture steps in order until one returns an IR.

A step that may hang, crash or corrupt the process runs in a forked child, which sends its IR as JSON.
"""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO

import torch

from torch_ir.capture.diagnosis import in_brief
from torch_ir.capture.instrument import exclusive, hide_gpu
from torch_ir.capture.program.provenance import user_line
from torch_ir.errors import CaptureWarning, Cause, ConversionError, ExportError, TorchIRError
from torch_ir.ir import IR
from torch_ir.processes.forked_child import CAN_FORK, ForkedChild
from torch_ir.processes.process_end import end_with_parent, ending, write_stack_at_end

TIME_LIMIT = 600.0
_log = logging.getLogger("torch_ir.capture")  # the command line shows it as progress
ANY_CAUSE = frozenset(Cause)
_Failure = (ExportError, ConversionError)


@dataclass(frozen=True)
class Step:
    """One way to capture a model: returns an IR, or raises ExportError or ConversionError."""

    model: str
    name: str
    capture: Callable[[], IR]
    is_risky: bool = False
    after: frozenset[Cause] = ANY_CAUSE  # causes of the first failure after which this step is tried


def climb(steps: Sequence[Step], *, isolated: bool = False, time_limit: float = TIME_LIMIT) -> IR:
    """Return the IR of the first step that succeeds; if none does, raise the error of the first step."""
    if isolated and not _can_fork():
        raise ExportError(
            "isolated=True needs a child process, but this process cannot fork: it is a daemon of multiprocessing, or "
            "the system has no fork; capture in another process, or without isolated"
        )
    plain: TorchIRError | None = None
    for number, step in enumerate(steps, 1):
        if plain is not None and plain.cause not in step.after:
            continue
        _log.info("capturing %s by %s, step %d of %d", step.model, step.name, number, len(steps))
        try:
            is_apart = isolated or (step.is_risky and _can_fork())
            ir = _in_child(step, time_limit) if is_apart else step.capture()
        except _Failure as failure:
            plain = plain or failure
            continue
        if plain is not None:
            ir.extensions["captured_by"] = step.name
            notice = f"captured by {step.name}, because {steps[0].name} {in_brief(plain)}"
            warnings.warn(notice, CaptureWarning, stacklevel=3)
        return ir
    assert plain is not None  # there is a step, and it failed
    raise plain


def _can_fork() -> bool:
    return CAN_FORK and not multiprocessing.current_process().daemon


def _in_child(step: Step, time_limit: float) -> IR:
    """Run a step in a forked child process."""
    with tempfile.TemporaryFile() as trace:
        with exclusive():  # no other thread is changing torch while this process is forked
            child = ForkedChild(lambda _, replies: _answer(step, replies, trace))
        try:
            if not child.replies.poll(time_limit):
                child.stop()
                end = f"took longer than {time_limit:g} s and was stopped; is there an endless loop?"
                raise ExportError(f"cannot capture {step.model}: {_place(trace)}{step.name} {end}")
            kind, text, cause, warned = child.replies.recv()
        except (EOFError, OSError):  # the child exited before it had sent everything
            end = f"{ending(child.wait())}; a call there does not work during a capture"
            raise ExportError(f"cannot capture {step.model}: {_place(trace)}{step.name} {end}") from None
        finally:
            child.end()
    for warning in warned:
        warnings.warn(warning, CaptureWarning, stacklevel=4)
    if kind == "IR":
        return IR.from_json(text)
    raise ConversionError(text, cause=cause) if kind == "ConversionError" else ExportError(text, cause=cause)


def _answer(step: Step, replies: Connection, trace: IO[bytes]) -> None:
    """Run in the child: send the IR as JSON, or the class, message and cause of the error.

    A crash or SIGTERM writes the stack to `trace`. What the model prints is lost: it would print in every step.
    """
    end_with_parent()  # a model in an endless loop would run for ever
    write_stack_at_end(trace)
    torch.set_num_threads(1)  # the parent's thread pool does not exist here
    hide_gpu()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CaptureWarning)
        try:
            answer = ("IR", step.capture().to_json(), Cause.UNKNOWN)
        except TorchIRError as error:
            answer = (type(error).__name__, str(error), error.cause)
    replies.send((*answer, [str(warning.message) for warning in caught]))


def _place(trace: IO[bytes]) -> str:
    """Return the user's line in the stack that the child wrote, innermost call first."""
    trace.seek(0)
    lines = trace.read().decode(errors="replace").splitlines()
    place = user_line("\n".join(reversed(lines)))
    return f"{place}: " if place else ""
