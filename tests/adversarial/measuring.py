"""CPU time and memory of a command on a shape at growing sizes, each in a child process under limits."""

import gc
import itertools
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.adversarial.other_files import write_other_files
from tests.adversarial.shapes import SHAPES
from tests.adversarial.verbs import run_verb, write_target
from torch_ir.ir import IR

SECONDS = 20
MEMORY = 2 << 30
TINY = 8  # a size at which only constant costs take time
_NOISE = 0.05  # seconds
_SMALL = 1 << 26  # bytes
MOST = 1.3  # exponent of time
SHORT = 0.3  # seconds below which growth is not reported
_WARMING = ("deep", "weights")  # shapes that make every command import what it needs
_BYTES_PER_BYTE = 1000  # of memory for the file


@dataclass(frozen=True)
class Ended:
    """One run of a command: `status` is its return value, or the negative number of the signal that ended it."""

    status: int
    seconds: float
    bytes: int
    said: str = ""


@dataclass(frozen=True)
class Growth:
    """A verb on a shape at growing sizes, the first of which is tiny; or at the largest alone, if that is short."""

    shape: str
    verb: str
    sizes: tuple[int, ...]
    file_bytes: tuple[int, ...]
    runs: tuple[Ended, ...]

    @property
    def is_short(self) -> bool:
        """Whether only the largest size was run, because its time and memory are too small to show growth."""
        return len(self.runs) == 1 and self.is_bounded

    @property
    def is_ended(self) -> bool:
        """Whether every run ended with a result or an error in one sentence."""
        return all(run.status in (0, 1) for run in self.runs)

    @property
    def is_refused(self) -> bool:
        """Whether the largest file was refused."""
        return self.runs[-1].status == 1

    @property
    def is_bounded(self) -> bool:
        """Whether every run ended within its limits, in time and memory that grow with the file."""
        last = self.runs[-1]
        is_fast = last.seconds < SHORT or self.exponent() <= MOST
        return self.is_ended and is_fast and last.bytes < _SMALL + _BYTES_PER_BYTE * self.file_bytes[-1]

    def exponent(self) -> float:
        """How CPU time grows with the bytes of a file: 1 is linear. Differences that may be noise count as none."""
        return self._exponent([run.seconds for run in self.runs], _NOISE)

    def memory_exponent(self) -> float:
        """How the peak of memory grows with the bytes of a file."""
        return self._exponent([run.bytes for run in self.runs], _SMALL)

    def _exponent(self, spent: Sequence[float], noise: float) -> float:
        if len(spent) < 3:
            return math.nan
        earlier, later = (max(one - spent[0], noise) for one in spent[-2:])
        return math.log(later / earlier) / math.log(self.file_bytes[-1] / self.file_bytes[-2])

    def __str__(self) -> str:
        times = " ".join(f"{run.seconds:7.2f}" for run in self.runs)
        memory = " ".join(f"{run.bytes >> 20:5d}" for run in self.runs)
        ends = "" if self.is_ended and not self.is_refused else str([run.status for run in self.runs])
        said = self.runs[-1].said[:120]
        figures = f"{self.exponent():5.2f} {self.memory_exponent():5.2f}"
        return f"{self.shape:<18} {self.verb:<17} {figures}  {times} s  {memory} MB {ends} {said}"


def measured(verbs: Mapping[str, Sequence[str]], sizes: Sequence[int]) -> Iterator[Growth]:
    """Run the verbs of each shape at the largest size and, if that takes long enough to show growth, at the others.

    A pair that seems to grow too fast is measured twice, because other processes use the same caches.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_target(folder)
        _warm_up(list(dict.fromkeys(itertools.chain(*verbs.values()))), folder)
        for shape, chosen in verbs.items():
            pairs = [_write_pair(shape, size, folder) for size in (TINY, *sizes)]
            for verb in chosen:
                growth = _grown(shape, verb, (TINY, *sizes), pairs, folder)
                if growth.is_ended and not growth.is_bounded:
                    again = _grown(shape, verb, (TINY, *sizes), pairs, folder)
                    growth = again if again.is_bounded else min(growth, again, key=Growth.exponent)
                yield growth


def _grown(shape: str, verb: str, sizes: tuple[int, ...], pairs: list[tuple[Path, Path]], folder: Path) -> Growth:
    lengths = tuple(file.stat().st_size for file, _ in pairs)
    last = in_child(verb, *pairs[-1], folder)
    alone = Growth(shape, verb, sizes[-1:], lengths[-1:], (last,))
    if alone.is_short or not alone.is_ended:
        return alone
    return Growth(shape, verb, sizes, lengths, (*(in_child(verb, *pair, folder) for pair in pairs[:-1]), last))


def _write_pair(shape: str, size: int, folder: Path) -> tuple[Path, Path]:
    file, second = folder / f"{shape}-{size}.json", folder / f"{shape}-{size}-second.json"
    SHAPES[shape](size).save(file)
    write_other_files(IR.load(file), file)  # a shape may share nodes with the graph that it was made from
    SHAPES[shape](size - size // 8).save(second)
    return file, second


def _warm_up(verbs: Sequence[str], folder: Path) -> None:
    """Import the dependencies of the commands, so that no child has to."""
    torch.set_num_threads(1)
    with _quiet(folder / "said"):
        for file, second in [_write_pair(shape, TINY, folder) for shape in _WARMING]:
            for verb in verbs:
                run_verb(verb, file, second, folder)
    gc.collect()
    gc.freeze()  # a child need not scan objects that its parent has loaded


class _quiet:
    """Send the descriptors of stdout and stderr to a file, which may not grow large."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._kept = os.dup(1), os.dup(2)
        with self._path.open("wb") as file, open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(file.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, kept in zip((1, 2), self._kept, strict=True):
            os.dup2(kept, descriptor)
            os.close(kept)


def in_child(verb: str, file: Path, second: Path, folder: Path) -> Ended:
    """Run a verb in a child, with at most 20 seconds of computing and 2 GiB of memory more than its parent has."""
    said = folder / "said"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            with _quiet(said):
                found = _spent(verb, file, second, folder)
            os.write(writing, json.dumps(found).encode())
        finally:
            os._exit(99)  # the exception is in stderr
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status, used = os.wait4(pid, 0)
    sentence = said.read_text(errors="replace").strip().splitlines()[-1:] or [""]
    if not told:
        return Ended(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss << 10, *sentence)
    return Ended(*json.loads(told), *sentence)


def _spent(verb: str, file: Path, second: Path, folder: Path) -> tuple[int, float, int]:
    """The status, the seconds of CPU, and the bytes by which memory grew."""
    pages = [int(field) for field in Path("/proc/self/statm").read_text().split()[:2]]
    _limit(pages[0] * resource.getpagesize() + MEMORY)
    before = time.process_time()
    status = run_verb(verb, file, second, folder)
    seconds = time.process_time() - before
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - pages[1] * resource.getpagesize()
    return status, seconds, max(0, grown)


def _limit(memory: int) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
