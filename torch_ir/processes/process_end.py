"""Describe how a process ended, in the same words everywhere; functions that a child calls to end in time."""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
from typing import IO

GRACE_SECONDS = 2.0  # for a process to write its stack after SIGTERM
_CRASHES = {
    "SIGSEGV": "invalid memory access",
    "SIGBUS": "access to unmapped memory",
    "SIGABRT": "a library aborted",
    "SIGFPE": "integer division by zero",
    "SIGKILL": "killed, possibly because the machine is out of memory",
}
_PR_SET_PDEATHSIG = 1
_LONGEST = 200  # characters of the last line that a process wrote


def end_with_parent() -> None:
    """Kill this process when the thread that started it ends (Linux only).

    A child that outlives that thread reads from a pipe instead, which is closed when its parent dies.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def write_stack_at_end(file: IO[bytes] | int) -> None:
    """Write the stack of this process to a file when it crashes, and on SIGTERM, which still ends it.

    A timer of faulthandler would deadlock in a forked process, on a lock that a thread of the parent holds.
    """
    faulthandler.enable(file)
    if hasattr(faulthandler, "register"):  # not on Windows
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.register(signal.SIGTERM, file=file, chain=True)


def signal_name(status: int) -> str:
    """Return the name of the signal that ended a process; empty if none did."""
    try:
        return signal.Signals(-status).name if status < 0 else ""
    except ValueError:
        return f"signal {-status}"


def ending(status: int, place: str = "", stderr: str = "") -> str:
    """Describe how a process ended without a result: the signal and its usual cause, or the status and its last line.

    `place` says where it was: ` in ...` or ` at ...`.
    """
    if name := signal_name(status):
        return f"crashed with {name}{place}{f': {_CRASHES[name]}' if name in _CRASHES else ''}"
    lines = stderr.strip().splitlines()
    last = "".join(sign if sign.isprintable() else "?" for sign in lines[-1][:_LONGEST]) if lines else ""
    return f"exited with status {status} without a result{place}{f': {last}' if last else ''}"
