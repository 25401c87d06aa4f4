"""Fast capture against torch.export, on a tiny model of every architecture of transformers in the tests."""

import logging
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import torch_ir
from benchmarks.measure import digits, machine, median_time, race, table
from benchmarks.models import torch_export
from tests.architectures import NEEDS_VALUES, NOT_CAPTURED, Architecture, architectures

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fast-capture-coverage.md"
SAME, DIFFERENT, FALLBACK, REFUSED = "same bytes", "DIFFERENT", "falls back to torch.export", "not captured"
TOP = """# Which models are captured fast

[Fast capture](fast-capture.md) returns a graph that is byte-identical to that of `torch.export`, or falls back to
`torch.export`. The table lists every architecture of `tests/architectures`, each as a tiny model with random weights.
`python -m benchmarks architectures --write` writes this page.
"""


@dataclass(frozen=True)
class Outcome:
    """Result for one architecture; the times of both sides if it was captured fast."""

    name: str
    kind: str
    verdict: str
    reason: str = ""
    theirs: float = 0.0
    ours: float = 0.0

    @property
    def cells(self) -> list[str]:
        if not self.ours:
            return [self.name, self.kind, "", "", "", self.told]
        times = [median_time([self.theirs]), median_time([self.ours]), digits(self.theirs / self.ours)]
        return [self.name, self.kind, *times, self.told]

    @property
    def told(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


def run(write: bool = False) -> str:
    """Count byte-identical architectures and measure the speed-up; `write` updates the page with the whole list."""
    outcomes = []
    for each in architectures():
        outcomes.append(_outcome(each))
        print(f"{each.name}: {outcomes[-1].told}", file=sys.stderr, flush=True)
    header = ["architecture", "kind", "torch.export", "extract_ir", "times faster", "graph"]
    summary = _summary(outcomes)
    if write:
        every = table(header, [outcome.cells for outcome in outcomes])
        PAGE.write_text(f"{TOP}\n{summary}\n\nMeasured on {machine()}.\n\n{every}\n", encoding="utf-8")
    return summary


def _summary(outcomes: list[Outcome]) -> str:
    count = Counter(outcome.verdict for outcome in outcomes)
    faster = sorted(outcome.theirs / outcome.ours for outcome in outcomes if outcome.ours)
    header = ["architectures", *(SAME, DIFFERENT, FALLBACK, REFUSED), "times faster: median (range)"]
    told = f"{digits(statistics.median(faster))} ({digits(faster[0])}-{digits(faster[-1])})"
    return table(header, [[len(outcomes), *(count[verdict] for verdict in header[1:-1]), told]])


def _outcome(architecture: Architecture) -> Outcome:
    about = architecture.name, architecture.kind
    if architecture.name in NOT_CAPTURED:
        return Outcome(*about, REFUSED, NOT_CAPTURED[architecture.name])
    model, inputs = _built(architecture)
    quick = partial(torch_ir.extract_ir, model, (), kwargs=inputs, strict=False)
    exact = partial(quick, capture="export")
    try:
        with _fallbacks() as reasons:
            ir = quick()
    except torch_ir.TorchIRError as error:
        return Outcome(*about, REFUSED, _cell(str(error)))
    if reasons:
        return Outcome(*about, FALLBACK, _cell(reasons[0]))
    verdict = SAME if exact().to_json() == ir.to_json() else DIFFERENT
    contestants: dict[str, Callable[[], Any]] = {"theirs": partial(torch_export, model, inputs), "ours": quick}
    samples = race(contestants, 1, turns={"ours": 3}, is_warm=True)
    return Outcome(*about, verdict, "", *(each.wall[0] for each in samples.values()))


def _cell(text: str) -> str:
    """Return the first line, escaped for a table."""
    return text.splitlines()[0].replace("|", "\\|")


def _built(architecture: Architecture) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the model and its inputs, on meta unless it needs values."""
    if architecture.name in NEEDS_VALUES:
        return architecture.build(), architecture.inputs()
    with torch.device("meta"):
        model = architecture.build()
    return model, pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), architecture.inputs())


class _Kept(logging.Handler):
    """Collect log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().partition(": ")[2])


@contextmanager
def _fallbacks() -> Iterator[list[str]]:
    """Collect the reasons for falling back to torch.export."""
    log, kept = logging.getLogger("torch_ir.capture"), _Kept()
    level = log.level
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    try:
        yield kept.lines
    finally:
        log.removeHandler(kept)
        log.setLevel(level)
