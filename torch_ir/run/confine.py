"""What a child process is held to: it ends with whoever waits for it, and takes only so much memory."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

_PARALLEL = 1 << 20  # elements that torch shares among its threads
_SLACK = 1 << 30  # bytes of address space that libraries reserve and never touch
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Where whoever waits for the result is killed, so is this; Linux alone can be told so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit(memory: int, others: Mapping[str, int]) -> None:
    """Take no more memory than what torch has by now and this, and no more of others, by their names in `resource`."""
    torch.ones(_PARALLEL).add_(1)  # its threads and their stacks are there from now on
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    bounds = {resource.RLIMIT_CORE: 0, **{getattr(resource, name): most for name, most in others.items()}}
    if Path("/proc/self/statm").exists():
        pages = [int(count) * resource.getpagesize() for count in Path("/proc/self/statm").read_text().split()]
        bounds[resource.RLIMIT_AS] = pages[0] + memory + _SLACK
        bounds[resource.RLIMIT_DATA] = pages[5] + memory
    for kind, most in bounds.items():
        hard = resource.getrlimit(kind)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (allowed, allowed))
