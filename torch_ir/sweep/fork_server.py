"""Fork server: preload torch, fork one worker per job, report its exit.

It reads a line of JSON per job and replies with one: the worker's report, or how it died.
"""

from __future__ import annotations

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
from torch_ir.ir.json.json_text import freeze_for_good
from torch_ir.ops.process_end import crash
from torch_ir.run.child_process import GRACE_SECONDS
from torch_ir.run.reply import shortened
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
    freeze_for_good()  # workers share these pages as long as they are not modified
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
    process = os.fork()
    if not process:
        child.main(folder, memory)
    status, peak = _wait(process, start + seconds)
    is_late = status is None
    if status is None:
        status, peak = _stop(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)  # processes it may have started
    facts = child.read_facts(folder)
    if is_late or "status" not in facts:
        facts |= _end(Path(folder), facts.get("step", "open"), None if is_late else status, seconds)
    return {**facts, "seconds": round(time.monotonic() - start, 3), "peak_bytes": peak}


def _wait(process: int, until: float) -> tuple[int | None, int]:
    """Return a worker's exit status, negative for a signal, and its peak memory; None for the status on timeout."""
    while time.monotonic() < until:
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            unit = 1 if sys.platform == "darwin" else 1024
            return os.waitstatus_to_exitcode(status), usage.ru_maxrss * unit
        if select.select([0], [], [], _TICK)[0]:  # no request precedes the reply, so this is the end of the pipe
            with suppress(ProcessLookupError):  # it is not the leader of its group yet; it ends with this process
                os.killpg(process, signal.SIGKILL)
            os._exit(1)
    return None, 0


def _stop(process: int) -> tuple[int, int]:
    """End a worker that timed out, after it printed its traceback."""
    os.kill(process, signal.SIGTERM)
    status, peak = _wait(process, time.monotonic() + GRACE_SECONDS)
    if status is None:
        os.kill(process, signal.SIGKILL)
        status, peak = _wait(process, time.monotonic() + 60 * GRACE_SECONDS)
    return status or 0, peak


def _end(folder: Path, step: str, status: int | None, seconds: float) -> dict[str, Any]:
    """Diagnose a worker that did not report its end; without a status, it timed out."""
    errors = (folder / child.STDERR).read_bytes()[-_KEPT:].decode(errors="replace")
    place = _place(errors)
    if status is None:
        return _row(Status.TIMEOUT, step, f"took more than {seconds:g} s in `{step}`{place}")
    if any(words in errors for words in child.NO_MEMORY):
        return _row(Status.MEMORY, step, f"exceeded the memory limit in `{step}`{place}")
    if crashed := crash(status, f" in `{step}`{place}"):
        return _row(Status.CRASHED, step, crashed)
    lines = shortened(errors).strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    return _row(Status.CRASHED, step, f"exited with status {status} without a result in `{step}`{last}")


def _row(status: Status, step: str, diagnosis: str) -> dict[str, Any]:
    return {"status": status.value, "step": step, "diagnosis": diagnosis}


def _place(errors: str) -> str:
    """Return the last location by the traceback that a signal left: the user's own line, or ""."""
    frames = [(file, line) for file, line in _FRAME.findall(errors) if not file.startswith(_FOREIGN)]
    return next((f" at {file}:{line}" for file, line in frames if "site-packages" not in file), "")
