"""The far side of a nursery: a process that has imported torch, forks a child for each request, and tells its end.

It reads a line of JSON for each job, and answers with one: what the child told of itself, or how it died.
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
import torch.export  # which the models of transformers ask for

from torch_ir.capture import extract_ir
from torch_ir.ir.files.temporary_folders import TemporaryFolder
from torch_ir.run.child_process import GRACE_SECONDS, crash
from torch_ir.run.reply import shortened
from torch_ir.sweep import child
from torch_ir.sweep.case import Case
from torch_ir.sweep.entry import Entry
from torch_ir.sweep.job import STEPS, Job
from torch_ir.sweep.model_steps import Work
from torch_ir.sweep.row import Status

_TICK = 0.02  # seconds between two looks at the child
_KEPT = 1 << 16  # bytes of its standard error, the last ones
_NOT_THEIRS = (str(Path(__file__).parents[1]), os.path.dirname(os.__file__), "<")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in')


def main(preload: str) -> None:
    """Serve requests until there is nobody left to ask."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what models print is not for whoever asks
    for name in filter(None, preload.split(",")):
        with suppress(Exception):  # a child that needs it will say what is wrong
            importlib.import_module(name)
    with suppress(Exception):  # likewise
        _warm_up()
    gc.freeze()  # children share these pages as long as nobody touches them
    while line := sys.stdin.readline():
        answers.write(json.dumps(_carry(**json.loads(line))) + "\n")
        answers.flush()


def _warm_up() -> None:
    """Take every step once, with next to nothing: what that imports and sets up, no child has to."""
    with TemporaryFolder() as folder:
        work = Work(Job(Entry("Linear"), _linear), folder / "graph.json")
        for step in ("open", *STEPS):
            work.take(step)


def _linear(entry: Entry) -> Case:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    sample = torch.ones(1, 2)
    return Case(
        lambda: extract_ir(model, (sample.to("meta"),)), lambda: torch.nn.Linear(2, 2), lambda *_: ((sample,), {})
    )


def _carry(folder: str, seconds: float, memory: int) -> dict[str, Any]:
    start = time.monotonic()
    process = os.fork()
    if not process:
        child.main(folder, memory)
    status, peak = _wait(process, start + seconds)
    is_late = status is None
    if status is None:
        status, peak = _stop(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # what it may have started
    told = child.told(folder)
    if is_late or "status" not in told:
        told |= _end(Path(folder), told.get("step", "open"), None if is_late else status, seconds)
    return {**told, "seconds": round(time.monotonic() - start, 3), "peak_bytes": peak}


def _wait(process: int, until: float) -> tuple[int | None, int]:
    """The status of a child, negative for a signal, and its peak memory; None if it is not over in time."""
    while time.monotonic() < until:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            unit = 1 if sys.platform == "darwin" else 1024
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit
        if select.select([0], [], [], _TICK)[0]:  # nobody writes before an answer, so this is the end of the pipe
            os.killpg(process, signal.SIGKILL)
            os._exit(1)
    return None, 0


def _stop(process: int) -> tuple[int, int]:
    """End a child that is out of time; it may say first where it is."""
    os.kill(process, signal.SIGTERM)
    status, peak = _wait(process, time.monotonic() + GRACE_SECONDS)
    if status is None:
        os.kill(process, signal.SIGKILL)
        status, peak = _wait(process, time.monotonic() + 60 * GRACE_SECONDS)
    return status or 0, peak


def _end(folder: Path, step: str, status: int | None, seconds: float) -> dict[str, Any]:
    """The diagnosis of a child that did not make one itself; without a status, it was out of time."""
    complaints = (folder / child.COMPLAINTS).read_bytes()[-_KEPT:].decode(errors="replace")
    place = _place(complaints)
    if status is None:
        return _row(Status.TIMEOUT, step, f"took more than {seconds:g} s in `{step}`{place}")
    if any(words in complaints for words in child.NO_MEMORY):
        return _row(Status.MEMORY, step, f"there was no memory left within the limit in `{step}`{place}")
    if crashed := crash(status, f" in `{step}`{place}"):
        return _row(Status.CRASHED, step, crashed)
    said = shortened(complaints).strip().splitlines()
    last = f": {said[-1][:200]}" if said else ""
    return _row(Status.CRASHED, step, f"ended with status {status} and without a result in `{step}`{last}")


def _row(status: Status, step: str, diagnosis: str) -> dict[str, Any]:
    return {"status": status.value, "step": step, "diagnosis": diagnosis}


def _place(complaints: str) -> str:
    """Where Python was at the end, by the traceback that a signal left: the user's own line if it has one."""
    frames = [(file, line) for file, line in _FRAME.findall(complaints) if not file.startswith(_NOT_THEIRS)]
    return next((f" at {file}:{line}" for file, line in frames if "site-packages" not in file), "")
