"""Kill a process while it saves, at random moments and at every step, and check the remaining files."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.faults.kinds import Kind
from torch_ir.errors import SerializationError

STEPS = ("open", "write", "fsync", "fchmod", "link", "replace", "rename", "unlink", "mkdir", "rmdir")
FALLIBLE = ("open", "write", "fsync", "fchmod", "link", "replace", "rename", "mkdir")  # which no cleaning up needs
_NEVER_FAILED = 77
_OUTSIDE, _BEFORE, _AFTER = range(3)  # of a save; before and after the new file has the target's name


@dataclass
class Tally:
    """Results of kills: their number, those within a save, errors afterwards, and leftover files."""

    kills: int = 0
    within: int = 0
    before: int = 0
    most_left: int = 0
    wrong: list[str] = field(default_factory=list)


class Place:
    """A folder in which one kind of file is saved, and its expected content for each version."""

    def __init__(self, kind: Kind, room: Path) -> None:
        self.kind = kind
        self.folder = room / "place"
        self.target = self.folder / kind.file
        self.expected = [self._saved(version) for version in (0, 1)]

    def _saved(self, version: int) -> list[str]:
        self.clear()
        self.kind.save(self.target, version)
        return self.listed()

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def listed(self) -> list[str]:
        return sorted(os.listdir(self.folder))

    def wrong(self, *, may_be_absent: bool = False) -> str:
        """Return the error of the file, if it is neither version."""
        if may_be_absent and not self.target.exists():
            return ""
        try:
            self.kind.read(self.target)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def wrong_after_save(self, version: int) -> str:
        """Return the errors after a further, undisturbed save."""
        self.kind.save(self.target, version)
        if self.listed() != self.expected[version]:
            return f"{self.listed()} is there, not {self.expected[version]}"
        return "" if self.kind.read(self.target) == version else "the old file is still there"


def kill_at_random(place: Place, kills: int, seed: int) -> Tally:
    """Kill a process that saves one version after the other, again and again, at moments drawn from a few saves."""
    draw, tally = random.Random(seed), Tally(kills)
    start = time.perf_counter()
    for version in (0, 1, 0):
        place.kind.save(place.target, version)
    span = time.perf_counter() - start
    with mmap.mmap(-1, 2) as shared:  # whether it began, and where it is
        for _ in range(kills):
            shared[0] = 0
            child = forked(lambda: _save_for_ever(place, shared))
            while not shared[0]:
                time.sleep(0)
            time.sleep(draw.uniform(0, span))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            tally.within += shared[1] != _OUTSIDE
            tally.before += shared[1] == _BEFORE
            tally.wrong += filter(None, [place.wrong()])
            tally.most_left = max(tally.most_left, len(place.listed()) - min(map(len, place.expected)))
    tally.wrong += filter(None, [place.wrong_after_save(0)])
    return tally


def _save_for_ever(place: Place, shared: mmap.mmap) -> None:
    """Save and report the operation: a file is renamed over the target, a folder by another call."""
    _tell_after(os, "replace", lambda: shared.__setitem__(1, _AFTER))
    folders: Any = sys.modules.get("torch_ir.golden.folders")
    if folders is not None:
        _tell_after(folders, "_take_place", lambda: shared.__setitem__(1, _AFTER))
    for number in count(1):
        shared[1] = _BEFORE
        shared[0] = 1
        place.kind.save(place.target, number % 2)
        shared[1] = _OUTSIDE


def _tell_after(module: Any, name: str, tell: Callable[[], None]) -> None:
    done = getattr(module, name)

    def telling(*args: Any, **kwargs: Any) -> Any:
        result = done(*args, **kwargs)
        tell()
        return result

    setattr(module, name, telling)


def kill_at_every_step(place: Place, *, over_old: bool) -> Tally:
    """Kill a save before each of its calls of the system in turn, and within each write; then save again."""
    tally = Tally()
    for step in count(1):
        place.clear()
        if over_old:
            place.kind.save(place.target, 0)
        child = forked(lambda step=step: _save_until(place, step))  # type: ignore[misc]  # mypy: a lambda's default
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
            return tally
        tally.kills += 1
        tally.most_left = max(tally.most_left, len(place.listed()) - (len(place.expected[0]) if over_old else 0))
        tally.wrong += [
            f"step {step}: {wrong}"
            for wrong in (place.wrong(may_be_absent=not over_old), place.wrong_after_save(1))
            if wrong
        ]
    raise AssertionError


def _save_until(place: Place, last: int) -> None:
    """Save the second version, and die at a step."""

    def die(write_half: Callable[[], object]) -> None:
        write_half()
        os.kill(os.getpid(), signal.SIGKILL)

    _act_at(last, STEPS, die)
    place.kind.save(place.target, 1)


def fail_at_every_step(place: Place, error: BaseException) -> Tally:
    """Let each system call fail in turn: one version exists, and no other files."""
    tally = Tally()
    for step in count(1):
        place.clear()
        place.kind.save(place.target, 0)
        child = forked(lambda step=step: _fail_at(place, step, error))  # type: ignore[misc]  # as above
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == _NEVER_FAILED:
            return tally
        tally.kills += 1
        now = place.kind.read(place.target)
        if status or place.listed() != place.expected[now]:
            tally.wrong.append(f"step {step}: status {status}, {place.listed()} is there, not {place.expected[now]}")
    raise AssertionError


def _fail_at(place: Place, last: int, error: BaseException) -> None:
    """Save the second version; a system error must become a typed one, others must propagate."""
    failed = []

    def fail(_: object) -> None:
        failed.append(True)
        raise error

    _act_at(last, FALLIBLE, fail)
    try:
        place.kind.save(place.target, 1)
    except (type(error), SerializationError) as caught:
        os._exit(isinstance(caught, SerializationError) != isinstance(error, OSError))
    os._exit(0 if failed else _NEVER_FAILED)


def _act_at(last: int, names: Iterable[str], act: Callable[[Callable[[], object]], None]) -> None:
    """From now on, calls of the system are counted, and before one of them something else happens."""
    steps = count(1)

    def wrapped(name: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if "dir_fd" not in kwargs and next(steps) == last:  # raised only when a folder is removed
                act(lambda: name == "write" and done(args[0], args[1][: len(args[1]) // 2]))
            return done(*args, **kwargs)

        return step

    for name in names:
        setattr(os, name, wrapped(name, getattr(os, name)))


def forked(work: Callable[[], None]) -> int:
    """Fork a child that runs one function, and exits without interpreter shutdown."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    return child


def as_other_systems() -> None:
    """From now on, no file without a name, and no swap of folders, as on systems that have neither."""
    if hasattr(os, "O_TMPFILE"):
        del os.O_TMPFILE
    folders: Any = sys.modules.get("torch_ir.golden.folders")
    if folders is not None:
        folders._swapped = lambda *_: False
