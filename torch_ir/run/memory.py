"""Whether a run fits into memory, asked before anything runs: rule R13."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from torch_ir.analysis.memory.memory_bound import Demand, Sizes
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, Limits

# What a container may use, in either version of Linux's control groups.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 62


class MemoryCheck:
    """What one graph asks for, against a limit; the same sizes are not judged twice in a row."""

    def __init__(self, ir: IR, limits: Limits, *, streamed: bool = False, device: str = "cpu") -> None:
        self._demand = Demand(ir, streamed=streamed)
        self._limit = memory_limit(limits, device)
        self._seen: Sizes | None = None

    def check(self, sizes: Sizes) -> None:
        """Refuse a run that would hold more than the limit, naming the node that takes most."""
        if sizes == self._seen:
            return
        if self._demand.bound(sizes) > self._limit:
            peak = self._demand.peak(sizes)
            if peak.bytes > self._limit:
                raise ExecutionError(
                    f"a run would hold {peak.bytes:,} bytes, more than {self._limit:,}, and most of them for "
                    f"{peak.node!r}; if that is meant, raise it with limits=Limits(memory_bytes={peak.bytes})"
                )
        self._seen = dict(sizes)


def memory_limit(limits: Limits, device: str = "cpu") -> int:
    """The bytes that a run may hold: those of the limits, or all that this machine, or container, has for its CPU."""
    if limits.memory_bytes is not None:
        return limits.memory_bytes
    return _memory_here() if device == "cpu" else _NO_LIMIT


@cache
def _memory_here() -> int:
    found = [_NO_LIMIT]
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # not there, or the word `max`
            found.append(int(Path(path).read_text()))
    if hasattr(os, "sysconf"):  # not on Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found)
