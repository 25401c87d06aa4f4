"""Run a sweep: submit the open jobs, store their rows, and write the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path

from torch_ir._version import __version__
from torch_ir.errors import CommandError, did_you_mean, first_line
from torch_ir.sweep.case import Opener
from torch_ir.sweep.engines import Engine
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.export_tables import write_parquet
from torch_ir.sweep.fork_client import end_all
from torch_ir.sweep.job import STEPS, Allowance, Job, Outcome, row_of, run_apart
from torch_ir.sweep.row import Row, Status
from torch_ir.sweep.summary import write_summary
from torch_ir.sweep.sweep_folder import Journal

_PACKAGES = ("torch", "transformers", "timm")  # on whose versions the result of a sweep depends
_AHEAD = 2  # queued jobs per worker, so that none is idle; more would only use memory
Watcher = Callable[[Row, int, int], None]  # row, number done, total


@dataclass(frozen=True)
class Plan:
    """The settings of a sweep; limits may change between starts, the others may not."""

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
        return Job(entry, self.open, self.steps, self.level, self.seed, self.limits, self.preload, _versions())


def sweep(
    entries: Sequence[Entry],
    folder: str | Path,
    plan: Plan,
    engine: Callable[[], Engine],
    *,
    retry: bool = False,
    watch: Watcher = lambda row, done, total: None,
) -> list[Row]:
    """Return a row for every model, in order; models with a row in the folder are skipped.

    With `retry`, models that were not ok run again. The engine is started only if there is something to do.
    """
    with Journal(Path(folder), plan.settings()) as journal:
        kept = {key for key, row in journal.rows.items() if not retry or row.status == Status.OK.value}
        left = [entry for entry in entries if entry.key not in kept]
        if left:
            _carry_out([plan.job(entry) for entry in left], journal, engine, len(entries), watch)
        rows = [journal.rows[entry.key] for entry in entries]
        write_parquet(rows, journal.folder)
        write_summary(rows, journal.folder)
    return rows


def _carry_out(jobs: Sequence[Job], journal: Journal, start: Callable[[], Engine], total: int, watch: Watcher) -> None:
    done = total - len(jobs)
    engine = start()
    try:
        for outcome in _outcomes(engine, jobs):
            journal.add(outcome)
            done += 1
            watch(outcome.row, done, total)
    finally:
        engine.close()
        end_all()  # if its workers were threads of this process


def _outcomes(engine: Engine, jobs: Iterable[Job]) -> Iterator[Outcome]:
    """Yield outcomes as they arrive."""
    waiting, running = iter(jobs), dict[Future[Outcome], Job]()
    while True:
        for job in islice(waiting, _AHEAD * engine.workers - len(running)):
            running[engine.executor.submit(run_apart, job)] = job
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield _outcome(future, running.pop(future))


def _outcome(future: Future[Outcome], job: Job) -> Outcome:
    try:
        return future.result()
    except CommandError:
        raise
    except Exception as error:  # of the engine: the worker was lost, and so were its retries
        diagnosis = f"the worker was lost: {type(error).__name__}: {first_line(error)}"
        return Outcome(row_of(job, status=Status.CRASHED.value, step="open", diagnosis=diagnosis))


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
