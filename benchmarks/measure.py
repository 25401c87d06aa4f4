"""Time several contestants in turns, so that noise of the machine affects all of them."""

import atexit
import gc
import json
import logging
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


@dataclass
class Samples:
    """Wall and CPU seconds of one contestant."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, action: Callable[[], Any], calls: int = 1, turns: int = 1) -> None:
        """Return the median over turns of the time per call."""
        taken = [_turn(action, calls) for _ in range(turns)]
        self.wall.append(statistics.median(wall for wall, _ in taken))
        self.cpu.append(statistics.median(cpu for _, cpu in taken))


def _turn(action: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Return wall and CPU seconds of a call, with the garbage collector disabled."""
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(calls):
            action()
        return (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls
    finally:
        gc.enable()


def race(
    contestants: Mapping[str, Callable[[], Any]],
    repeats: int,
    calls: int = 1,
    turns: Mapping[str, int] = {},
    is_warm: bool = False,
) -> dict[str, Samples]:
    """Run every contestant once to warm up, unless `is_warm`, then `repeats` rounds in which each has its turn.

    A fast contestant may have several `turns` per round; their median counts.
    """
    if not is_warm:
        for action in contestants.values():
            action()
    samples = {name: Samples() for name in contestants}
    for _ in range(repeats):
        for name, action in contestants.items():
            samples[name].add(action, calls, turns.get(name, 1))
    return samples


def ratios(one: list[float], other: list[float]) -> str:
    """Format the median of the rounds' ratios and their range: `1.04 (1.02-1.07)`."""
    found = [a / b for a, b in zip(one, other, strict=True)]
    return f"{digits(statistics.median(found))} ({digits(min(found))}-{digits(max(found))})"


def digits(number: float) -> str:
    """Format a number with three digits: `1.04`, `23.5`, `652`."""
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"


def median_time(seconds: list[float]) -> str:
    """Format the median with three digits, in a suitable unit."""
    median = statistics.median(seconds)
    unit, scale = next((unit, scale) for unit, scale in _UNITS if median >= scale or unit == "µs")
    return f"{digits(median / scale)} {unit}"


def measured_alone(module: str, *arguments: object) -> Any:
    """Run a script in a separate process and return the JSON that it prints; None if it fails."""
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=with_bytecode())
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


@cache
def with_bytecode() -> dict[str, str]:
    """Return an environment in which Python keeps bytecode, as that of an installed package is kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if len(kept) == len(os.environ):
        return kept
    folder = tempfile.mkdtemp(prefix="bytecode-")  # not beside the sources, where the user wants none
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {**kept, "PYTHONPYCACHEPREFIX": folder}


def forget_peak() -> None:
    """Reset the peak memory counter of this process; a child inherits that of its parent."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> int:
    """Return a memory counter of this process in bytes: `VmRSS` is the current size, `VmHWM` the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Format a Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def has_table(name: str) -> bool:
    """Whether docs/benchmarks.md has the marks of a table, in their order."""
    return f"<!-- end {name} -->" in PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")[2]


def replace_table(name: str, text: str) -> None:
    """Replace the text between the marks of a table in docs/benchmarks.md."""
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(start)
    after = rest.partition(end)[2]
    PAGE.write_text(f"{before}{start}{text}\n{end}{after}", encoding="utf-8")


def machine() -> str:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {versions}"


class CaptureNotes(logging.Handler):
    """What captures log: the reasons for falling back to torch.export, and whether the model ran again."""

    def __init__(self) -> None:
        super().__init__()
        self.fallbacks: list[str] = []
        self.runs_again = False

    def emit(self, record: logging.LogRecord) -> None:
        if reason := getattr(record, "fallback", ""):
            self.fallbacks.append(reason)
        self.runs_again |= getattr(record, "runs_again", False)
