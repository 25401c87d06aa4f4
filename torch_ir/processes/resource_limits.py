"""Limits of this process: its memory is bounded, and so are other resources."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

_SLACK = 1 << 30  # bytes of address space that libraries reserve but do not use


def limit_resources(memory: int, others: Mapping[str, int]) -> None:
    """Limit memory to what is used now plus `memory`, and other resources by their names in `resource`."""
    try:
        import resource
    except ImportError:  # not on Windows
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
