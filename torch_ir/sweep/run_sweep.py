"""Run a sweep: submit the open jobs, store their rows, and write the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path

from torch_ir.errors import CommandError, first_line
from torch_ir.sweep.engines import Engine
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.fork_client import end_all
from torch_ir.sweep.job import Job, Outcome, Plan, row_of, run_apart
from torch_ir.sweep.row import Row, Status
from torch_ir.sweep.summary import write_summary
from torch_ir.sweep.sweep_folder import Journal

_AHEAD = 2  # queued jobs per worker, so that none is idle; more would only use memory
Watcher = Callable[[Row, int, int], None]  # row, number done, total


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
