"""Describe how a process ended, in the same words everywhere."""

from __future__ import annotations

import signal

_CRASHES = {
    "SIGSEGV": "invalid memory access",
    "SIGBUS": "access to unmapped memory",
    "SIGABRT": "a library aborted",
    "SIGFPE": "integer division by zero",
    "SIGKILL": "killed, possibly because the machine is out of memory",
}


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
