"""Fast capture against torch.export, on a tiny model of every architecture of transformers in the tests.

python -m benchmarks.architectures [NAME ...] [--before DATE] [--untimed] [--write]

Without names, every architecture is measured. With --write, each result is stored in architectures.json as soon as it
is known, and both pages are written from that file at the end. `--before $(date +%F)`
skips those that were measured today: the same command continues after an interruption.
"""

import argparse
import json
import logging
import statistics
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import torch_ir
from benchmarks.measure import CaptureNotes, digits, machine, median_time, race, replace_table, table
from benchmarks.models import torch_export
from tests.architectures import NEEDS_VALUES, NOT_CAPTURED, UNLIKE_EXPORT, Architecture, architectures

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "fast-capture-coverage.md"
SAME, DIFFERENT, FALLBACK, REFUSED = "same bytes", "DIFFERENT", "falls back to torch.export", "not captured"
UNLIKE = "recorded, unlike torch.export"
VERDICTS = (SAME, UNLIKE, DIFFERENT, FALLBACK, REFUSED)
AGAIN = "run again"
TOP = """# Which models are captured fast

[Fast capture](fast-capture.md) returns a graph that is byte-identical to that of `torch.export`, with a few exceptions,
named here, or falls back to `torch.export`. Where forward may change Python state, the capture then
[runs the model again](fast-capture.md#models-that-run-again); the column *graph* says so. The table lists every
architecture of `tests/architectures`, each as a tiny model with random weights.
`python -m benchmarks.architectures --write` writes this page; an architecture without times was not timed since its
capture changed.
"""


@dataclass(frozen=True)
class Outcome:
    """Result for one architecture: how it is captured, and the seconds of both sides if it was captured fast."""

    verdict: str
    reason: str = ""
    runs_again: bool = False  # a search for Python state that forward changes
    theirs: float = 0.0
    ours: float = 0.0
    measured: str = ""  # the day
    on: str = ""  # the machine of the times

    @property
    def is_timed(self) -> bool:
        return self.ours > 0

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours

    @property
    def cells(self) -> list[str]:
        times = (
            [median_time([self.theirs]), median_time([self.ours]), digits(self.ratio)] if self.is_timed else [""] * 3
        )
        return [*times, ": ".join(filter(None, (self.verdict, AGAIN if self.runs_again else "", self.reason)))]

    def with_times_of(self, former: "Outcome | None") -> "Outcome":
        """Return this outcome with the times of a former one, if the model is still captured in the same way."""
        if former is None or (former.verdict, former.runs_again) != (self.verdict, self.runs_again):
            return self
        return replace(self, theirs=former.theirs, ours=former.ours, measured=former.measured, on=former.on)


def run(write: bool = False) -> str:
    """Count byte-identical architectures and measure the speed-up; `write` updates the page with the whole list."""
    return measured(architectures(), stored(), write=write)


def measured(
    chosen: Collection[Architecture], outcomes: dict[str, Outcome], *, is_timed: bool = True, write: bool = False
) -> str:
    """Measure some architectures and return the summary of all; `write` stores each, and updates the pages."""
    found: dict[str, Outcome] = {}
    for each in chosen:
        found[each.name] = outcome = outcome_of(each, is_timed)
        if not is_timed:
            found[each.name] = outcome = outcome.with_times_of(outcomes.get(each.name))
        print(each.name, *filter(None, outcome.cells), sep=", ", file=sys.stderr, flush=True)
        if write:
            outcomes[each.name] = outcome
            store(outcomes)
    if write:
        PAGE.write_text(page(outcomes), encoding="utf-8")
        replace_table("architectures", short(outcomes))
    return summary(outcomes if write else found)


def stored() -> dict[str, Outcome]:
    """Return the last outcome of each architecture of the tests, in their order."""
    known = json.loads(DATA.read_text(encoding="utf-8"))
    return {each.name: Outcome(**known[each.name]) for each in architectures() if each.name in known}


def store(outcomes: Mapping[str, Outcome]) -> None:
    empty = asdict(Outcome(""))
    rows = {
        each.name: {key: value for key, value in asdict(outcomes[each.name]).items() if value != empty[key]}
        for each in architectures()
        if each.name in outcomes
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    DATA.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def page(outcomes: Mapping[str, Outcome]) -> str:
    """Return the page with the whole list."""
    header = ["architecture", "kind", "torch.export", "extract_ir", "times faster", "graph"]
    rows = [[each.name, each.kind, *outcomes[each.name].cells] for each in architectures() if each.name in outcomes]
    return f"{TOP}\n{short(outcomes)}\n\n{table(header, rows)}\n"


def short(outcomes: Mapping[str, Outcome]) -> str:
    """Return the summary with its conditions."""
    return f"{summary(outcomes)}\n\n{conditions(outcomes)}"


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """Return the counts and the speed-ups: of all that were timed, and of those that run again."""
    every = list(outcomes.values())
    counts = [sum(each.verdict == verdict for each in every) for verdict in VERDICTS]
    again = [each for each in every if each.runs_again]
    header = ["architectures", *VERDICTS, AGAIN, "times faster: median (range)", f"of those that are {AGAIN}"]
    return table(header, [[len(every), *counts, len(again), _speed_ups(every), _speed_ups(again)]])


def _speed_ups(outcomes: Collection[Outcome]) -> str:
    timed = sorted(each.ratio for each in outcomes if each.is_timed)
    if not timed:
        return "not timed"
    return f"{digits(statistics.median(timed))} ({digits(timed[0])}-{digits(timed[-1])}, {len(timed)} timed)"


def conditions(outcomes: Mapping[str, Outcome]) -> str:
    """Return when and where the outcomes were measured."""
    days = sorted({each.measured for each in outcomes.values() if each.measured})
    machines = sorted({each.on for each in outcomes.values() if each.is_timed})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"Measured {when}; times on {' and on '.join(machines)}."


def outcome_of(architecture: Architecture, is_timed: bool = True) -> Outcome:
    """Capture an architecture in both ways; time both if the bytes are those of a fast recording."""
    today = partial(Outcome, measured=date.today().isoformat())
    if architecture.name in NOT_CAPTURED:
        return today(REFUSED, NOT_CAPTURED[architecture.name])
    model, inputs = _built(architecture)
    quick = partial(torch_ir.extract_ir, model, (), kwargs=inputs, strict=False)
    exact = partial(quick, capture="export")
    try:
        with _noted() as notes:
            ir = quick()
    except torch_ir.TorchIRError as error:
        return today(REFUSED, _cell(str(error)))
    if notes.fallbacks:
        return today(FALLBACK, _cell(notes.fallbacks[0]), notes.runs_again)
    reason = UNLIKE_EXPORT.get(architecture.name, "")
    if reason:
        return today(UNLIKE, reason, notes.runs_again)
    verdict = SAME if exact().to_json() == ir.to_json() else DIFFERENT
    if not is_timed:
        return today(verdict, runs_again=notes.runs_again)
    contestants: dict[str, Callable[[], Any]] = {"theirs": partial(torch_export, model, inputs), "ours": quick}
    samples = race(contestants, 1, turns={"ours": 3}, is_warm=True)
    theirs, ours = (round(each.wall[0], 6) for each in samples.values())
    return today(verdict, "", notes.runs_again, theirs, ours, on=machine())


def _is_due(outcome: Outcome | None, day: str) -> bool:
    """Whether an architecture was not measured since a day, or never timed since its capture changed."""
    return outcome is None or outcome.measured < day or (outcome.verdict in (SAME, DIFFERENT) and not outcome.is_timed)


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


@contextmanager
def _noted() -> Iterator[CaptureNotes]:
    """Collect what captures log."""
    log, notes = logging.getLogger("torch_ir.capture"), CaptureNotes()
    level = log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield notes
    finally:
        log.removeHandler(notes)
        log.setLevel(level)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.architectures", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which architectures (default: all)")
    parser.add_argument("--before", metavar="DATE", help="only those not timed since this day")
    parser.add_argument("--untimed", action="store_true", help="compare graphs alone, and keep times that still apply")
    parser.add_argument("--write", action="store_true", help="store the results and write the pages")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {each.name for each in architectures()}:
        parser.error(f"no architecture is called {min(unknown)!r}")
    warnings.simplefilter("ignore")
    outcomes = stored()
    chosen = [each for each in architectures() if each.name in options.names or not options.names]
    if options.before:
        chosen = [each for each in chosen if _is_due(outcomes.get(each.name), options.before)]
    print(measured(chosen, outcomes, is_timed=not options.untimed, write=options.write))
    return 0


if __name__ == "__main__":
    sys.exit(main())
