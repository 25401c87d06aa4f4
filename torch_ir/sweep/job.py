"""The plan of a sweep, its jobs, and their outcomes."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

from torch_ir._version import __version__
from torch_ir.errors import CommandError, did_you_mean
from torch_ir.sweep.case import Opener
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.fork_client import ServerLostError, borrowed_server
from torch_ir.sweep.row import Row, Status

STEPS = ("extract", "cost", "optimize", "verify")
_ATTEMPTS = 2
_PACKAGES = ("torch", "transformers", "timm")  # on whose versions the result of a sweep depends


@dataclass(frozen=True)
class Allowance:
    """Limits of one model: seconds, bytes on top of torch itself, threads."""

    seconds: float = 600.0
    memory: int = 4 << 30
    threads: int = 1


@dataclass(frozen=True)
class Plan:
    """The settings of a sweep; limits may change between starts, the others may not.

    `open` opens a model of the list, and `preload` are modules that every worker needs.
    """

    open: Opener
    steps: tuple[str, ...] = STEPS
    level: str = "basic"
    seed: int = 0
    limits: Allowance = field(default_factory=Allowance)
    preload: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for step in self.steps:
            if step not in STEPS:
                raise CommandError(f"unknown step {step!r}; expected {', '.join(STEPS)}{did_you_mean(step, STEPS)}")
        if self.steps[:1] != STEPS[:1] or list(self.steps) != [step for step in STEPS if step in self.steps]:
            raise CommandError(f"steps must be in the order {', '.join(STEPS)}, and the first is required")

    def settings(self) -> dict[str, str]:
        """Return the settings that must be equal to resume a sweep."""
        return {"steps": ",".join(self.steps), "level": self.level, "seed": str(self.seed), "versions": _versions()}

    def job(self, entry: Entry) -> Job:
        return Job(entry, self, _versions())


@dataclass(frozen=True)
class Job:
    """A model of the list, and the plan by which it runs."""

    entry: Entry
    plan: Plan
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
    limits = job.plan.limits
    for _ in range(_ATTEMPTS):
        try:
            with borrowed_server(limits.threads, job.plan.preload) as server:
                record, graph = server.run(job, limits.seconds, limits.memory)
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


@cache
def _versions() -> str:
    """Return the versions of torch_ir, torch and installed model libraries, without importing them."""
    found = [f"torch_ir {__version__}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
