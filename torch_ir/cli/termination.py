"""SIGTERM ends a command as Ctrl-C does: temporary files are removed and child processes end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TerminatedError(KeyboardInterrupt):
    """SIGTERM arrived; a KeyboardInterrupt so that the same clean-up runs."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise TerminatedError in the main thread on SIGTERM, unless the program installed its own handler."""
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise TerminatedError
