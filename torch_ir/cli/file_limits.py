"""Limits on the files that a command reads, and on its CPU time if it only analyses them.

The time is checked by a timer, so that no loop has to check it.
"""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.ir.checks.limits import Limits
    from torch_ir.ir.checks.work import Work

_TICK = 0.5  # seconds of CPU time
_DIGITS = 18
# Commands that run graphs or the user's code, or read weights, and options and outputs that make others do so.
_UNTIMED = frozenset(("run", "verify", "golden", "bench", "sensitivity", "compare", "weights", "lower"))
_OPTIONS = ("weights", "verify", "sample", "lora", "dumps")
_EXPORTED = (".onnx", ".pt2")


class OvertimeError(KeyboardInterrupt):
    """The limit is exceeded; a KeyboardInterrupt so that no handler of errors continues, and the same clean-up runs."""


@contextmanager
def limited(arguments: argparse.Namespace) -> Iterator[None]:
    """Limit the files that a command reads, and all that it does with them if it only analyses them."""
    from torch_ir.ir.checks.work import working  # not for the help of a command

    with working() as work:
        work.limits = _limits(arguments.limits)
        try:
            with _timed(work) if _is_analysis(arguments) else nullcontext():
                yield
        except OvertimeError:
            raise work.overtime() from None


@contextmanager
def _timed(work: Work) -> Iterator[None]:
    """Raise OvertimeError in the main thread when the process exceeds the seconds that its files allow."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    since = time.process_time()

    def tick(*_: object) -> None:
        if time.process_time() - since > work.seconds:
            signal.setitimer(signal.ITIMER_PROF, 0)
            raise OvertimeError

    before = signal.signal(signal.SIGPROF, tick)
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, _TICK, _TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _is_analysis(arguments: argparse.Namespace) -> bool:
    options = [getattr(arguments, name, None) for name in _OPTIONS]
    is_exported = str(getattr(arguments, "output", "")).endswith(_EXPORTED)
    return arguments.verb not in _UNTIMED and not any(options) and not is_exported


def _limits(texts: Sequence[str]) -> Limits:
    """Return the limits of `--limit NAME=NUMBER`, and the usual ones of other names."""
    from dataclasses import fields, replace

    from torch_ir.ir.checks.limits import Limits

    known = {field.name for field in fields(Limits)}
    chosen: dict[str, Any] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in known:
            raise CommandError(f"--limit: unknown limit {name!r:.60}{did_you_mean(name, known)}")
        if not number.isdecimal() or len(number) > _DIGITS:
            raise CommandError(f"--limit takes NAME=NUMBER, such as {name}=1000, not {text!r:.60}")
        chosen[name] = int(number)
    return replace(Limits(), **chosen)
