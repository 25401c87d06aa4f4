"""One model as work to hand out, and what comes back of it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from typing import Any

from torch_ir.sweep.case import Opener
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.fork_client import MotherLostError, nursery
from torch_ir.sweep.row import Row, Status

STEPS = ("extract", "cost", "optimize", "verify")
_ATTEMPTS = 2


@dataclass(frozen=True)
class Allowance:
    """What one model may take: seconds, bytes beyond those of torch itself, threads."""

    seconds: float = 600.0
    memory: int = 4 << 30
    threads: int = 1


@dataclass(frozen=True)
class Job:
    """A model, who opens it, and what to do with it; `preload` are modules that every such process needs."""

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
    """A row, and the text of the graph if there is one."""

    row: Row
    graph: bytes | None = None


def run_apart(job: Job) -> Outcome:
    """Carry out a job in a process of its own; whatever happens there, this returns a row. Any worker may call it."""
    if job.entry.error:
        return Outcome(row_of(job, status=Status.REFUSED.value, step="read", diagnosis=job.entry.error))
    for _ in range(_ATTEMPTS):
        try:
            with nursery(job.limits.threads, job.preload) as mother:
                record, graph = mother.run(job, job.limits.seconds, job.limits.memory)
            return Outcome(row_of(job, **record), graph)
        except MotherLostError:
            continue
    told = "the process that starts the others ended, twice; `torch-ir doctor` says whether torch works here"
    return Outcome(row_of(job, status=Status.CRASHED.value, step="open", diagnosis=told))


def row_of(job: Job, **facts: Any) -> Row:
    """A row about a job, with what is known of it."""
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
