"""SIGTERM and SIGHUP end a command as Ctrl-C does: temporary files are removed and child processes end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class TerminatedError(KeyboardInterrupt):
    """A signal arrived; a KeyboardInterrupt so that the same clean-up runs. `status` is the shell's for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


@contextmanager
def terminable() -> Iterator[None]:
    """Raise TerminatedError in the main thread on these signals, unless the program handles or ignores them."""
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in _SIGNALS if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, partial(_terminate, os.getpid()))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _terminate(process: int, number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    if os.getpid() != process:  # a forked child, which has nothing to clean up
        os.kill(os.getpid(), number)
    raise TerminatedError(number)
