"""Fork server: preload torch, fork one worker per job, report its exit.

It reads a line of JSON per job and replies with one: the worker's report, or how it died.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.export  # needed by models of transformers

from torch_ir.capture import extract_ir
from torch_ir.ir.files.temporary_folders import TemporaryFolder
from torch_ir.processes.forked_child import ForkedChild
from torch_ir.processes.process_end import ending
from torch_ir.sweep import child
from torch_ir.sweep.case import Case
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.job import STEPS, Job, Plan
from torch_ir.sweep.model_steps import Work
from torch_ir.sweep.row import Status

_TICK = 0.02  # seconds between polls of the worker
_KEPT = 1 << 16  # bytes of stderr that are kept, the last ones
_FOREIGN = (str(Path(__file__).parents[1]), os.path.dirname(os.__file__), "<")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in')


def main(preload: str) -> None:
    """Serve requests until stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # keep the models' output out of the replies
    for name in filter(None, preload.split(",")):
        with suppress(Exception):  # a worker that needs it will report the error
            importlib.import_module(name)
    with suppress(Exception):  # likewise
        _warm_up()
    gc.freeze()  # workers share these pages as long as they are not modified
    while line := sys.stdin.readline():
        answers.write(json.dumps(_run_job(**json.loads(line))) + "\n")
        answers.flush()


def _warm_up() -> None:
    """Run every step once on a minimal model, so that workers inherit all imports and set-up."""
    with TemporaryFolder() as folder:
        work = Work(Job(Entry("Linear"), Plan(_linear)), folder / "graph.json")
        for step in ("open", *STEPS):
            work.take(step)


def _linear(entry: Entry) -> Case:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    sample = torch.ones(1, 2)
    return Case(
        lambda: extract_ir(model, (sample.to("meta"),)), lambda: torch.nn.Linear(2, 2), lambda *_: ((sample,), {})
    )


def _run_job(folder: str, seconds: float, memory: int) -> dict[str, Any]:
    start = time.monotonic()
    worker = ForkedChild(lambda *_: child.main(folder, memory))
    is_late = not _ends_in_time(worker, start + seconds)
    if is_late:
        worker.stop()
    status = worker.end()
    _kill_group(worker)
    facts = child.read_facts(folder)
    if is_late or "status" not in facts:
        facts |= _end(Path(folder), facts.get("step", "open"), None if is_late else status, seconds)
    return {**facts, "seconds": round(time.monotonic() - start, 3), "peak_bytes": worker.peak_bytes}


def _ends_in_time(worker: ForkedChild, until: float) -> bool:
    """Wait for the end of a worker; exit if the client is gone."""
    while worker.poll() is None:
        if time.monotonic() >= until:
            return False
        if select.select([0], [], [], _TICK)[0]:  # no request precedes the reply, so this is the end of the pipe
            _kill_group(worker)
            os._exit(1)
    return True


def _kill_group(worker: ForkedChild) -> None:
    """Kill a worker and the processes it may have started."""
    with suppress(ProcessLookupError, PermissionError):  # it is not the leader of its group yet, or all have ended
        os.killpg(worker.process, signal.SIGKILL)


def _end(folder: Path, step: str, status: int | None, seconds: float) -> dict[str, Any]:
    """Diagnose a worker that did not report its end; without a status, it timed out."""
    errors = (folder / child.STDERR).read_bytes()[-_KEPT:].decode(errors="replace")
    place = _place(errors)
    if status is None:
        return _row(Status.TIMEOUT, step, f"took more than {seconds:g} s in `{step}`{place}")
    if any(words in errors for words in child.NO_MEMORY):
        return _row(Status.MEMORY, step, f"exceeded the memory limit in `{step}`{place}")
    return _row(Status.CRASHED, step, ending(status, f" in `{step}`{place}", errors))


def _row(status: Status, step: str, diagnosis: str) -> dict[str, Any]:
    return {"status": status.value, "step": step, "diagnosis": diagnosis}


def _place(errors: str) -> str:
    """Return the last location by the traceback that a signal left: the user's own line, or ""."""
    frames = [(file, line) for file, line in _FRAME.findall(errors) if not file.startswith(_FOREIGN)]
    return next((f" at {file}:{line}" for file, line in frames if "site-packages" not in file), "")
