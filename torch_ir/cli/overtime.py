"""The limit on the CPU time of a command that only analyses files: a timer, so that no loop has to check it."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch_ir.ir.checks.work import Work

_TICK = 0.5  # seconds of CPU time
# Commands that run graphs or the user's code, or read weights, and options and outputs that make others do so.
_UNTIMED = frozenset(("run", "verify", "golden", "bench", "sensitivity", "compare", "weights", "lower"))
_OPTIONS = ("weights", "verify", "sample", "lora", "dumps")
_EXPORTED = (".onnx", ".pt2")


class OvertimeError(KeyboardInterrupt):
    """The limit is exceeded; a KeyboardInterrupt so that no handler of errors continues, and the same clean-up runs."""


@contextmanager
def timed(arguments: argparse.Namespace, work: Work) -> Iterator[None]:
    """Raise OvertimeError in the main thread when a command exceeds the seconds that its files allow."""
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and hasattr(signal, "setitimer") and _is_analysis(arguments)):
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
