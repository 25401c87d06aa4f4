"""One fuzzing process of a target, started again after each failure until its time is over."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzz.targets import COUNT, CURRENT, FOLDER, REGRESSIONS, TARGETS

_WORD = re.compile(rb'"[^"\\\n]{1,40}"|[A-Za-z_$][\w.$]{1,40}')
_COVERAGE = re.compile(r"cov: (\d+)")
_PEAK = re.compile(r"rss: (\d+)Mb")
_TIMEOUT = 120  # seconds of wall time for one input, in case it waits for ever; computing has a limit of its own
_LEAST = 15  # seconds of a run: importing torch takes some of them


@dataclass(frozen=True)
class Job:
    """Process `number` of a target; what it finds is in the target's folder, which all its processes share."""

    target: str
    number: int

    @property
    def folder(self) -> Path:
        return FOLDER / self.target / f"process-{self.number}"

    @property
    def crashes(self) -> Path:
        return FOLDER / self.target / "crashes"


@dataclass(frozen=True)
class Done:
    """Result of a job; `coverage` counts the edges that it reached."""

    executions: int
    coverage: int
    peak_mb: int


def prepare(target: str) -> None:
    """Write the seeds, the known failures and the dictionary of a target."""
    folder = FOLDER / target
    for name in ("corpus", "crashes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    seeds = TARGETS[target].seeds()
    known = [path.read_bytes() for path in sorted((REGRESSIONS / target).glob("*"))]
    for number, seed in enumerate([*seeds, *known]):
        (folder / "corpus" / f"seed-{number}").write_bytes(seed)
    words = sorted({word for seed in seeds for word in _WORD.findall(seed)})
    (folder / "words").write_text("".join(f'"{_escaped(word)}"\n' for word in words))


def _escaped(word: bytes) -> str:
    return "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in word)


def run(job: Job, end: float) -> Done:
    """Fuzz until the time `end` of `time.monotonic`; raise SystemExit if the target cannot be started."""
    job.folder.mkdir(parents=True, exist_ok=True)
    done = list(_runs(job, end))
    return Done(
        sum(one.executions for one in done),
        max((one.coverage for one in done), default=0),
        max((one.peak_mb for one in done), default=0),
    )


def _runs(job: Job, end: float) -> Iterator[Done]:
    attempt = 0
    while (left := end - time.monotonic()) > (_LEAST if attempt else 0):
        yield _one_run(job, attempt, left)
        attempt += 1


def _one_run(job: Job, attempt: int, seconds: float) -> Done:
    count, log = job.folder / COUNT, job.folder / f"log-{attempt}.txt"
    count.write_bytes(bytes(8))
    with log.open("wb") as output:
        command = _command(job, seconds)
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        status = _end_of(process, seconds)
    said = log.read_text(errors="replace")
    executions = int.from_bytes(count.read_bytes(), "little")
    if status and not executions:
        raise SystemExit(f"{job.target} could not be fuzzed:\n{said[-2000:]}")
    current = job.folder / CURRENT
    if status and status < 0 and current.exists():  # a signal, which ends the process before it can keep the input
        current.rename(job.crashes / f"signal{status}-{job.number}-{attempt}")
    return Done(executions, _largest(_COVERAGE, said), _largest(_PEAK, said))


def _command(job: Job, seconds: float) -> list[str]:
    return [
        sys.executable, "-X", "faulthandler", "-m", "fuzz.one", job.target, str(job.number),
        f"-max_total_time={max(1, int(seconds))}", "-max_len=20000", f"-timeout={_TIMEOUT}", "-rss_limit_mb=2048",
        f"-report_slow_units={_TIMEOUT}", "-reload=1",  # the seed is random: the inputs that fail are kept
        f"-dict={FOLDER / job.target / 'words'}", f"-artifact_prefix={job.crashes}/",
        *(f"-handle_{name}=0" for name in ("segv", "bus", "abrt", "ill", "fpe")),  # faulthandler prints the stack
        str(FOLDER / job.target / "corpus"),
    ]  # fmt: skip


def _end_of(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    """Wait for a process and return its status; None if it had to be ended because its time was over."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        process.wait()
        return None


def _largest(pattern: re.Pattern[str], text: str) -> int:
    return max(map(int, pattern.findall(text)), default=0)
