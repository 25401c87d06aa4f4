"""Fuzz the readers and commands: `python -m fuzz [NAME ...] [--seconds N] [--processes N] [--together] [--json]`.

Every target begins with its seeds and with what was found before, in `reports/fuzz/NAME`. A process that fails keeps
the input in `reports/fuzz/NAME/crashes` and starts again; all processes end when the time is over. The exit status says
whether an input failed, and `reports/fuzz/summary.json` has the figures of the last run.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from fuzz.job import Job, prepare, run
from fuzz.targets import FOLDER, TARGETS

_HEADINGS = ("target", "processes", "computed s", "executions", "per second", "coverage", "peak MB", "failures")


@dataclass(frozen=True)
class Summary:
    """Figures of all processes of a target."""

    target: str
    processes: int
    seconds: float
    computed: float  # seconds of computing of its processes and their children
    executions: int
    coverage: int
    peak_mb: int
    crashes: list[str]

    def row(self) -> str:
        speed = int(self.executions / self.seconds)
        used = self.processes, int(self.computed), self.executions, speed
        cells = (*used, self.coverage, self.peak_mb, len(self.crashes))
        return f"{self.target:<16}" + "".join(f"{cell:>12}" for cell in cells)


def fuzz(names: Sequence[str], seconds: float, processes: int) -> list[Summary]:
    """Fuzz targets at the same time, for some seconds."""
    started, clock, computed = time.monotonic(), time.time(), _computed()
    for name in names:
        prepare(name)
    jobs = [Job(name, number) for name in names for number in range(processes)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        results = list(pool.map(lambda job: run(job, started + seconds), jobs))
    share = (_computed() - computed) / len(names)
    summaries = []
    for name in names:
        own = [done for job, done in zip(jobs, results, strict=True) if job.target == name]
        crashes = sorted(str(path) for path in (FOLDER / name / "crashes").iterdir() if path.stat().st_mtime >= clock)
        figures = sum(one.executions for one in own), max(one.coverage for one in own), max(one.peak_mb for one in own)
        lasted = round(time.monotonic() - started, 1)
        summaries.append(Summary(name, processes, lasted, round(share, 1), *figures, crashes))
    return summaries


def _computed() -> float:
    """Return the seconds of computing of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=60, metavar="N", help="for each target (default: 60)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="for each target (default: 1)")
    parser.add_argument("--together", action="store_true", help="all targets at the same time")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON at the end")
    arguments = parser.parse_args()
    names = arguments.names or list(TARGETS)
    print(f"{_HEADINGS[0]:<16}" + "".join(f"{heading:>12}" for heading in _HEADINGS[1:]), flush=True)
    summaries = []
    for group in [names] if arguments.together else [[name] for name in names]:
        for summary in fuzz(group, arguments.seconds, arguments.processes):
            print(summary.row(), flush=True)
            summaries.append(summary)
    text = json.dumps([asdict(summary) for summary in summaries])
    (FOLDER / "summary.json").write_text(text)
    for summary in summaries:
        for path in summary.crashes:
            again = f"{sys.executable} -m fuzz.one {summary.target} 0 {path}"
            print(f"\n{summary.target} failed; to see it again:\n  {again}")
    if arguments.json:
        print(text, flush=True)
    return 1 if any(summary.crashes for summary in summaries) else 0


if __name__ == "__main__":
    sys.exit(main())
