"""Check before a run whether it fits into memory: rule R13."""

from __future__ import annotations

import contextlib
import os
from functools import cache
from pathlib import Path

from torch_ir.analysis.memory.memory_bound import Demand, Sizes
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, Limits

# Memory limit of a container, in either version of Linux's control groups.
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NO_LIMIT = 1 << 62


class MemoryCheck:
    """The memory demand of one graph, checked against a limit; equal sizes are not checked twice in a row."""

    def __init__(self, ir: IR, limits: Limits, *, streamed: bool = False, device: str = "cpu") -> None:
        self._demand = Demand(ir, streamed=streamed)
        self._limit = memory_limit(limits, device)
        self._seen: Sizes | None = None

    def check(self, sizes: Sizes) -> None:
        """Raise ExecutionError for a run that would exceed the limit, naming the node that needs most."""
        if sizes == self._seen:
            return
        if self._demand.bound(sizes) > self._limit:
            peak = self._demand.peak(sizes)
            if peak.bytes > self._limit:
                raise ExecutionError(
                    f"a run would need {peak.bytes:,} bytes, more than {self._limit:,}, most of them for "
                    f"{peak.node!r}; if that is intended, pass limits=Limits(memory_bytes={peak.bytes})"
                )
        self._seen = dict(sizes)


def memory_limit(limits: Limits, device: str = "cpu") -> int:
    """Return the bytes that a run may use: as limited, or the memory of the machine or container for the CPU."""
    if limits.memory_bytes is not None:
        return limits.memory_bytes
    return _memory_here() if device == "cpu" else _NO_LIMIT


@cache
def _memory_here() -> int:
    found = [_NO_LIMIT]
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # missing, or the word `max`
            found.append(int(Path(path).read_text()))
    if hasattr(os, "sysconf"):  # not on Windows
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found)
