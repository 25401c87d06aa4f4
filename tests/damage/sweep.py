"""Corrupt files by the thousand, and check the results of reading them."""

import random
import resource
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.damage import graph_files, planning_files, tensor_files  # noqa: F401 - they enter their kinds
from tests.damage.kinds import KINDS, damaged, every_cut_and_flip
from tests.damage.subject import FILES, Kind, Subject, new_folder
from torch_ir.errors import RuleError, TorchIRError

REFUSED_WITH_PATH, REFUSED, SAME, CHANGED = "refused with a path", "refused", "same meaning", "another meaning"
SAMPLE = 3 * len(KINDS)  # damaged files of each kind in every run of the tests
EVERY = 900  # and in the sweep; more of those that a digest protects
PROTECTED = 2700
SLOW_FILES = ("ONNX to be bound", "remembered choices of back ends")  # each case writes these to disk again
CUT_AND_FLIPPED = ("a side file", "a lowered graph")  # small ones, with a digest


@dataclass
class Outcomes:
    """How often each thing was the end of it, and the slowest case."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_case: str = ""

    @property
    def refused(self) -> int:
        return self.counts[REFUSED] + self.counts[REFUSED_WITH_PATH]

    def merge(self, other: "Outcomes") -> None:
        self.counts += other.counts
        if other.slowest > self.slowest:
            self.slowest, self.slowest_case = other.slowest, other.slowest_case

    def add(self, outcome: str, seconds: float, case: str) -> None:
        self.counts[outcome] += 1
        if seconds > self.slowest:
            self.slowest, self.slowest_case = seconds, case


def count_of(name: str) -> int:
    """How many damaged files of a kind there are in the full sweep."""
    return EVERY // 10 if name in SLOW_FILES else PROTECTED if FILES[name].has_digest else EVERY


def variants(content: bytes, other: bytes, numbers: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield corrupted forms of a file by their numbers, which determine the corruption; each kind in turn."""
    names = list(KINDS)
    for number in numbers:
        kind = names[number % len(names)]
        yield f"{kind}, number {number}", damaged(content, other, kind, random.Random(number))


def judge(kind: Kind, numbers: Iterable[int]) -> Outcomes:
    """Return the outcomes of corrupted files of a kind; an AssertionError or an untyped error is a bug."""
    with new_folder() as folder:
        subject = kind.make(Path(folder))
        return _judged(kind, subject, variants(subject.path.read_bytes(), subject.other, numbers))


def judge_each_cut_and_flip(kind: Kind) -> Outcomes:
    """The same for every place at which a file can be cut, and every bit of it."""
    with new_folder() as folder:
        subject = kind.make(Path(folder))
        cases = enumerate(every_cut_and_flip(subject.path.read_bytes()))
        return _judged(kind, subject, ((f"case {number}", content) for number, content in cases))


def _judged(kind: Kind, subject: Subject, cases: Iterable[tuple[str, bytes]]) -> Outcomes:
    expected = subject.read()
    outcomes = Outcomes()
    for case, content in cases:
        subject.path.write_bytes(content)
        started = time.perf_counter()
        outcome = _outcome(kind, subject, expected, case)
        outcomes.add(outcome, time.perf_counter() - started, f"{kind.name}, {case}")
    return outcomes


def _outcome(kind: Kind, subject: Subject, expected: Any, case: str) -> str:
    refusal: TorchIRError | None = None
    try:
        found = subject.read()
    except TorchIRError as error:
        refusal = error
    except Exception as error:
        raise AssertionError(f"{kind.name}, {case}: {type(error).__name__}: {error}") from error
    if refusal is None:
        assert found == expected or not kind.has_digest, f"{kind.name}, {case}: the damage went unseen"
        return SAME if found == expected else CHANGED
    path, rule = (refusal.path, refusal.rule) if isinstance(refusal, RuleError) else ("", "")
    assert rule or not kind.has_digest, f"{kind.name}, {case}: no rule is named: {refusal}"
    return REFUSED_WITH_PATH if path else REFUSED


def measure() -> dict[str, int | float | str]:
    """Return the figures of the full sweep: outcomes of each kind, the slowest case, and the memory."""
    figures: dict[str, int | float | str] = {}
    protected: Counter[str] = Counter()
    slowest = Outcomes()
    for kind in FILES.values():
        found = _swept(kind)
        figures[f"damaged: {kind.name}"] = ", ".join(f"{found.counts[name]} {name}" for name in found.counts)
        protected += found.counts if kind.has_digest else Counter()
        slowest = max(slowest, found, key=lambda outcomes: outcomes.slowest)
    return {
        "damaged files with a digest": protected.total(),
        "of them with another meaning": protected[CHANGED],
        **figures,
        "slowest damaged file": f"{1e3 * slowest.slowest:.0f} ms ({slowest.slowest_case})",
        "peak memory of the sweep": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB",
    }


def _swept(kind: Kind) -> Outcomes:
    outcomes = judge(kind, range(count_of(kind.name)))
    if kind.name in CUT_AND_FLIPPED:
        outcomes.merge(judge_each_cut_and_flip(kind))
    return outcomes


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # other libraries warn about corrupted files
    for label, figure in measure().items():
        print(f"{label}: {figure}")
