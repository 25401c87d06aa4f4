"""Describe how a process ended, in the same words everywhere; fork a child that gets its signals and ends in time."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CRASHES = {
    "SIGSEGV": "invalid memory access",
    "SIGBUS": "access to unmapped memory",
    "SIGABRT": "a library aborted",
    "SIGFPE": "integer division by zero",
    "SIGKILL": "killed, possibly because the machine is out of memory",
}
_PR_SET_PDEATHSIG = 1
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Hold back signals that end a process until the end of the block; a child forked inside it calls `accept_signals`.

    Python calls functions of libraries around a fork, and prints and forgets an exception that a signal raises there.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_signals() -> None:
    """Receive signals that were held back when this process was forked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


def end_with_parent() -> None:
    """Kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_name(status: int) -> str:
    """Return the name of the signal that ended a process; empty if none did."""
    try:
        return signal.Signals(-status).name if status < 0 else ""
    except ValueError:
        return f"signal {-status}"


def crash(status: int, place: str = "") -> str:
    """Describe how a signal ended a process, and the usual cause; empty if none did."""
    name = signal_name(status)
    return name and f"crashed with {name}{place}{f': {_CRASHES[name]}' if name in _CRASHES else ''}"
