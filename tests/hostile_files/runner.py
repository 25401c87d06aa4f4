"""Run every case in a separate process, with memory and time limits and canaries."""

import gc
import json
import os
import re
import resource
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from tests.hostile_files import CASES, canaries, case, controls
from tests.hostile_files.case import Case
from tests.hostile_files.openings import OPENINGS
from tests.hostile_files.shown import LeakError
from torch_ir.errors import RuleError, TorchIRError

_ROOM = 1 << 30  # bytes of memory in addition to the interpreter's
_SECONDS = 10  # of computing
_PATIENCE = 180  # seconds of waiting, for a machine that is busy with other things


@dataclass(frozen=True)
class Ended:
    """How a case ended."""

    case: Case
    outcome: str
    detail: str
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.outcome == self.case.expected


def run_all(cases: Sequence[Case] = CASES) -> Iterator[Ended]:
    """How each case ends, in order; two are open at a time."""
    _warm_up()
    numbers = [CASES.index(one) for one in cases]
    with get_context("fork").Pool(2) as pool:
        for number, (outcome, detail, seconds) in zip(numbers, pool.imap(_run_number, numbers), strict=True):
            yield Ended(CASES[number], outcome, detail, seconds)


def _run_number(number: int) -> tuple[str, str, float]:
    """Run a case by its number, because cases contain functions and cannot be sent."""
    ended = run(CASES[number])
    return ended.outcome, ended.detail, ended.seconds


def _warm_up() -> None:
    """Import what all cases need, so that each child does not."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        for control in controls.FAMILY:
            folder = Path(name) / control.name
            folder.mkdir()
            OPENINGS[control.opens](control.make(folder))
        OPENINGS["printers"](controls.FAMILY[0].make(Path(name)))
        OPENINGS["questions"](controls.FAMILY[0].make(Path(name)))
    gc.collect()
    gc.disable()  # a child would look through all that its parent has loaded


def run(one: Case) -> Ended:
    """Write the files of a case, open them in a child, and check the side effects."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        folder, canary = root / "files", root / "canary"
        folder.mkdir()
        canary.mkdir()
        (canary / "secret.txt").write_text(canaries.SECRET)
        file = one.make(folder)
        before, started = canaries.snapshot(root), time.monotonic()
        with canaries.guarded(canary) as touched:
            outcome, detail = _in_child(one, file)
        after = canaries.snapshot(root)
    seconds = time.monotonic() - started
    if touched or before != after:
        changed = {os.path.basename(path) for path, _ in before.items() ^ after.items()}
        return Ended(one, case.SIDE_EFFECT, f"opened {touched}, changed {changed}; {detail}", seconds)
    return Ended(one, outcome, detail, seconds)


def _in_child(one: Case, file: Path) -> tuple[str, str]:
    """Return the report of a child; one without a report hung or crashed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.write(writing, json.dumps(_observed(one, file)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], _PATIENCE)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if said:
        outcome, detail = json.loads(said)
        return outcome, detail
    number = os.waitstatus_to_exitcode(status)
    is_hung = not ready or -number == signal.SIGXCPU
    return (case.HUNG if is_hung else case.CRASHED), f"status {number}"


def _observed(one: Case, file: Path) -> tuple[str, str]:
    """Open a file under limits, and compare the state before and after."""
    os.chdir(file.parent)
    watch, before = canaries.Watch(file.parent), canaries.settings()
    _limit()
    watch.is_on = True
    outcome, detail = _opened(one, file)
    watch.is_on = False
    after = canaries.settings()
    changed = [key for key in before if before[key] != after[key]]
    if watch.acts or changed or canaries.SECRET in detail:
        return case.SIDE_EFFECT, f"{watch.acts[:3]} {changed}; {detail}"
    return outcome, detail


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + _ROOM,
        resource.RLIMIT_CPU: _SECONDS,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def _opened(one: Case, file: Path) -> tuple[str, str]:
    try:
        OPENINGS[one.opens](file)
    except TorchIRError as error:
        found = error.rule if isinstance(error, RuleError) else ""
        place = error.path if isinstance(error, RuleError) else ""
        told = f"{type(error).__name__} {found or 'no rule'} at {place or 'no path'}: {error!s:.200}"
        is_placed = re.fullmatch(one.place, place) if one.opens == "graph" else re.search(one.place, f"{place} {error}")
        is_right = re.fullmatch(one.rule, found) and is_placed and len(str(error)) < 1000
        return (case.REFUSED if is_right else case.UNNAMED), told
    except LeakError as leak:
        return case.LEAKED, str(leak)[:300]
    except MemoryError:
        return case.MEMORY, ""
    except BaseException as error:  # any exception is what the suite is for
        return case.RAW, f"{type(error).__name__}: {error!s:.200}"
    return (case.LOADED if one.expected == case.REFUSED else one.expected), ""
