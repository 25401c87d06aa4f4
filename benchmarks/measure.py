"""Time several ways of doing the same thing, turn by turn, so that a noisy machine is noisy for all of them."""

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Samples:
    """Wall and CPU seconds of one contestant."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def once(self, action: Callable[[], Any], calls: int = 1) -> None:
        gc.collect()
        gc.disable()
        try:
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(calls):
                action()
            self.wall.append((time.perf_counter() - wall) / calls)
            self.cpu.append((time.process_time() - cpu) / calls)
        finally:
            gc.enable()


def race(contestants: dict[str, Callable[[], Any]], repeats: int, calls: int = 1) -> dict[str, Samples]:
    """Run every contestant once to warm up, then `repeats` rounds in turn."""
    for action in contestants.values():
        action()
    samples = {name: Samples() for name in contestants}
    for _ in range(repeats):
        for name, action in contestants.items():
            samples[name].once(action, calls)
    return samples


def ratios(one: list[float], other: list[float]) -> str:
    """The median of the rounds' ratios and their range: `1.04 (1.02-1.07)`."""
    found = [a / b for a, b in zip(one, other, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"


def milliseconds(seconds: list[float]) -> str:
    """The median as text with three digits."""
    return f"{statistics.median(seconds) * 1e3:.3g} ms"


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def machine() -> str:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {versions}"
