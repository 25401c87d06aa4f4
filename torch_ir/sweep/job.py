"""Jobs of a sweep and their outcomes."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import Any

from torch_ir.sweep.case import Opener
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.fork_client import ServerLostError, borrowed_server
from torch_ir.sweep.row import Row, Status

STEPS = ("extract", "cost", "optimize", "verify")
_ATTEMPTS = 2


@dataclass(frozen=True)
class Allowance:
    """Limits of one model: seconds, bytes on top of torch itself, threads."""

    seconds: float = 600.0
    memory: int = 4 << 30
    threads: int = 1


@dataclass(frozen=True)
class Job:
    """A model, its opener and the steps to run; `preload` are modules that every worker needs."""

    entry: Entry
    open: Opener
    steps: tuple[str, ...] = STEPS
    level: str = "basic"
    seed: int = 0
    limits: Allowance = field(default_factory=Allowance)
    preload: tuple[str, ...] = ()
    versions: str = ""


@dataclass(frozen=True)
class Outcome:
    """A row, and the text of the graph, if any."""

    row: Row
    graph: bytes | None = None


def run_apart(job: Job) -> Outcome:
    """Run a job in its own process; always returns a row, whatever happens there. Any worker may call it."""
    if job.entry.error:
        return Outcome(row_of(job, status=Status.REFUSED.value, step="read", diagnosis=job.entry.error))
    for _ in range(_ATTEMPTS):
        try:
            with borrowed_server(job.limits.threads, job.preload) as server:
                record, graph = server.run(job, job.limits.seconds, job.limits.memory)
            return Outcome(row_of(job, **record), graph)
        except ServerLostError:
            continue
    diagnosis = "the fork server died twice; run `torch-ir doctor` to check the installation"
    return Outcome(row_of(job, status=Status.CRASHED.value, step="open", diagnosis=diagnosis))


def row_of(job: Job, **facts: Any) -> Row:
    """Return the row of a job with these facts."""
    entry = job.entry
    return Row.from_record(
        {
            "model": entry.model,
            "input": "  ".join(entry.input),
            "dim": "  ".join(entry.dim),
            "key": entry.key,
            "worker": f"{platform.node()}:{os.getpid()}",
            "versions": job.versions,
            **facts,
        }
    )
