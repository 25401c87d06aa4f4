"""Fuzz the readers, and print the results: `python -m fuzz [NAME ...] [--seconds N]`.

Every target begins with its seeds and with what was found before, in `reports/fuzz/NAME`; a crash is kept there, and
the exit status says that there was one. `reports/fuzz/summary.json` has the figures of the last run.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz.targets import CURRENT, FOLDER, REGRESSIONS, TARGETS

_WORD = re.compile(rb'"[^"\\\n]{1,40}"|[A-Za-z_$][\w.$]{1,40}')
_COVERAGE = re.compile(r"cov: (\d+)")
_FIGURE = r"stat::{}:\s+(\d+)"


@dataclass(frozen=True)
class Run:
    """Result of one target; `coverage` counts the edges that it reached."""

    target: str
    executions: int
    per_second: int
    coverage: int
    peak_mb: int
    crashes: list[str]


def fuzz(name: str, seconds: int) -> Run:
    """Run a target for some time, or until it fails."""
    folder = FOLDER / name
    crashes = folder / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    started = time.time()
    words, corpus = _write_words(name, folder / "words"), _write_seeds(name, folder)
    options = [
        f"-max_total_time={seconds}", "-max_len=20000", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1",
        f"-dict={words}", f"-artifact_prefix={crashes}/",
        *(f"-handle_{signal}=0" for signal in ("segv", "bus", "abrt", "ill", "fpe")),  # faulthandler prints the stack
        str(corpus),
    ]  # fmt: skip
    command = [sys.executable, "-X", "faulthandler", "-m", "fuzz.one", name, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode < 0 and (folder / CURRENT).exists():
        (folder / CURRENT).rename(crashes / f"signal{done.returncode}-{int(started)}")
    (folder / "log.txt").write_text(done.stdout + done.stderr)
    found = sorted(str(path) for path in crashes.iterdir() if path.stat().st_mtime >= started)
    if done.returncode and not found:
        raise SystemExit(f"{name} could not be fuzzed:\n{done.stderr[-2000:]}")
    figures = [_last(_FIGURE.format(figure), done.stderr) for figure in ("number_of_executed_units", "peak_rss_mb")]
    speed = _last(_FIGURE.format("average_exec_per_sec"), done.stderr)
    return Run(name, figures[0], speed, _last(_COVERAGE.pattern, done.stderr), figures[1], found)


def _write_seeds(name: str, folder: Path) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    known = [path.read_bytes() for path in sorted((REGRESSIONS / name).glob("*"))]
    for number, seed in enumerate([*TARGETS[name].seeds(), *known]):
        (corpus / f"seed-{number}").write_bytes(seed)
    return corpus


def _write_words(name: str, path: Path) -> Path:
    """Return the keys, tags and names of the seeds, as a dictionary for libFuzzer."""
    words = sorted({word for seed in TARGETS[name].seeds() for word in _WORD.findall(seed)})
    path.write_text("".join(f'"{_escaped(word)}"\n' for word in words))
    return path


def _escaped(word: bytes) -> str:
    return "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else f"\\x{byte:02x}" for byte in word)


def _last(pattern: str, text: str) -> int:
    return int((re.findall(pattern, text) or ["0"])[-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="for each target (default: 60)")
    arguments = parser.parse_args()
    print(f"{'target':<16}{'executions':>12}{'per second':>12}{'coverage':>10}{'peak MB':>9}{'crashes':>9}", flush=True)
    runs = []
    for name in arguments.names or TARGETS:
        run = fuzz(name, arguments.seconds)
        runs.append(run)
        print(
            f"{name:<16}{run.executions:>12}{run.per_second:>12}{run.coverage:>10}{run.peak_mb:>9}{len(run.crashes):>9}",
            flush=True,
        )
    (FOLDER / "summary.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))
    for run in runs:
        for path in run.crashes:
            print(f"\n{run.target} failed; to see it again:\n  {sys.executable} -m fuzz.one {run.target} {path}")
    return 1 if any(run.crashes for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
