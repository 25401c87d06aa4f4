"""The worker process of one model: set limits, then run the steps, reporting each so that a crash can be located."""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from torch_ir.errors import TorchIRError, first_line
from torch_ir.processes.process_end import end_with_parent, write_stack_at_end
from torch_ir.run.confine import limit
from torch_ir.run.reply import shortened
from torch_ir.sweep.fork_client import GRAPH, REQUEST
from torch_ir.sweep.job import Job
from torch_ir.sweep.model_steps import Work
from torch_ir.sweep.row import Status

STDERR, _FACTS = "stderr", "facts"  # file names
_LARGEST = {"RLIMIT_FSIZE": 4 << 30}  # bytes of a file: a model may print endlessly
NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "bad_alloc", "MemoryError")  # in messages


def main(folder: str, memory: int) -> NoReturn:
    """Run the job whose request is in a folder."""
    end_with_parent()
    os.setsid()
    _redirect_stderr(Path(folder, STDERR))
    limit(memory, _LARGEST)
    _run(Path(folder))


def _redirect_stderr(stderr: Path) -> None:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    write_stack_at_end(2)


def _run(folder: Path) -> NoReturn:
    warnings.simplefilter("ignore")
    try:
        with open(folder / _FACTS, "w", encoding="utf-8") as file:
            _report(file, **_outcome(folder, file))
    except BaseException as error:  # there may be no memory left for this either
        os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
        os._exit(1)
    os._exit(0)  # no clean-up is needed


def _outcome(folder: Path, file: Any) -> dict[str, Any]:
    job: Job | None = None
    try:
        job = pickle.loads((folder / REQUEST).read_bytes())
        assert job is not None  # the content of the request
        work = Work(job, folder / GRAPH)
        for step in ("open", *job.plan.steps):
            _report(file, step=step)
            _report(file, **work.take(step))
        problem = work.problem
        return {"status": (Status.FAILED if problem else Status.OK).value, "diagnosis": shortened(problem)}
    except BaseException as error:
        return {"status": _kind(error).value, "diagnosis": _sentence(error, job.entry.model if job else "")}


def _report(file: Any, **facts: Any) -> None:
    file.write(json.dumps(facts) + "\n")
    file.flush()


def read_facts(folder: str) -> dict[str, Any]:
    """Return everything a worker reported; an incomplete last line is ignored."""
    facts: dict[str, Any] = {}
    path = Path(folder, _FACTS)
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.exists() else ():
        facts |= json.loads(line)
    return facts


def _kind(error: BaseException) -> Status:
    for each in _chain(error):
        if isinstance(each, MemoryError) or any(words in str(each) for words in NO_MEMORY):
            return Status.MEMORY
    return Status.REFUSED if isinstance(error, TorchIRError) else Status.FAILED


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _sentence(error: BaseException, model: str) -> str:
    """Return an error as one line without the model's settings, so that equal errors read alike."""
    text = first_line(error).replace(model, model.partition("?")[0]) if model else first_line(error)
    return shortened(text if isinstance(error, TorchIRError) else f"{type(error).__name__}: {text}")
