"""Try the capture steps in order until one returns an IR.

A step that may hang, crash or corrupt the process runs in a forked child, which sends its IR as JSON.
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import IO

import torch

from torch_ir.capture.diagnosis import in_brief
from torch_ir.capture.program.provenance import user_line
from torch_ir.capture.quiet import no_warning_of_threads
from torch_ir.errors import CaptureWarning, Cause, ConversionError, ExportError, TorchIRError
from torch_ir.ir import IR
from torch_ir.ops.process_end import accept_signals, crash, end_with_parent, signals_deferred

TIME_LIMIT = 600.0
_log = logging.getLogger("torch_ir.capture")  # the command line shows it as progress
_GRACE = 1.0  # seconds for a stopped child to write its stack
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
    return "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon


def _in_child(step: Step, time_limit: float) -> IR:
    """Run a step in a forked child process."""
    context = multiprocessing.get_context("fork")  # the child has the model without pickling
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as trace, ours:
        child = context.Process(target=_answer, args=(step, theirs, trace), daemon=True)
        with no_warning_of_threads(), signals_deferred():  # the child does not use threads
            child.start()
        theirs.close()
        try:
            if not ours.poll(time_limit):
                child.terminate()
                child.join(_GRACE)
                end = f"took longer than {time_limit:g} s and was stopped; is there an endless loop?"
                raise ExportError(f"cannot capture {step.model}: {_place(trace)}{step.name} {end}")
            kind, text, cause, warned = ours.recv()
        except (EOFError, OSError):  # the child exited before it had sent everything
            child.join()
            status = child.exitcode or 0
            end = f"{crash(status) or f'exited with status {status}'}; a call there does not work during a capture"
            raise ExportError(f"cannot capture {step.model}: {_place(trace)}{step.name} {end}") from None
        finally:
            child.kill()
            child.join()
    for warning in warned:
        warnings.warn(warning, CaptureWarning, stacklevel=4)
    if kind == "IR":
        return IR.from_json(text)
    raise ConversionError(text, cause=cause) if kind == "ConversionError" else ExportError(text, cause=cause)


def _answer(step: Step, pipe: Connection, trace: IO[bytes]) -> None:
    """Run in the child: send the IR as JSON, or the class, message and cause of the error; write the stack of a crash.

    On SIGTERM, write the stack and exit. A timer of faulthandler would deadlock on a lock of the parent's.
    """
    end_with_parent()  # a model in an endless loop would run for ever
    faulthandler.enable(trace)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGTERM, file=trace, chain=True)
    accept_signals()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # a model would print again in every step, and the error describes a crash
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)  # the parent's thread pool does not exist here
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", CaptureWarning)
        try:
            answer = ("IR", step.capture().to_json(), Cause.UNKNOWN)
        except TorchIRError as error:
            answer = (type(error).__name__, str(error), error.cause)
    pipe.send((*answer, [str(warning.message) for warning in caught]))


def _place(trace: IO[bytes]) -> str:
    """Return the user's line in the stack that the child wrote, innermost call first."""
    trace.seek(0)
    lines = trace.read().decode(errors="replace").splitlines()
    place = user_line("\n".join(reversed(lines)))
    return f"{place}: " if place else ""
