"""Corrupt subjects, decide for every mutant whether it is equivalent and whether it is detected, and count."""

import itertools
import random
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from tests.mutations import attributes, declarations, interface, wiring  # noqa: F401  # they fill the table
from tests.mutations.equivalence import Endless, Original, limited
from tests.mutations.kinds import KINDS, Mutant
from tests.mutations.subjects import Subject, subject
from torch_ir import TorchIRError, verify_ir_with_state_dict

CAUGHT, MISSED, EQUIVALENT = "caught", "missed", "equivalent"


@dataclass
class Tally:
    """Counts by kind and outcome, and the names of the missed ones."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def merge(self, other: "Tally") -> None:
        self.counts += other.counts
        self.missed += other.missed

    def total(self, outcome: str) -> int:
        return sum(count for (_, found), count in self.counts.items() if found == outcome)

    @property
    def score(self) -> float:
        """The part of the mutants that are other functions which was caught."""
        return self.total(CAUGHT) / max(1, self.total(CAUGHT) + self.total(MISSED))


def sweep(names: Iterable[str], each: int, *, most: int | None = None) -> Tally:
    """Up to `each` mutants of every kind of every subject, and up to `most` of every kind, the same ones every time."""
    tally = Tally()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of tiny runs
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # a wrong graph may have surplus weights, and torch its own opinions
            for name in names:
                of_kinds = Counter(kind for kind, _ in tally.counts.elements())
                kinds = [kind for kind in KINDS if most is None or of_kinds[kind] < most]
                _sweep_one(subject(name), kinds, each, tally)
    finally:
        torch.set_num_threads(threads)
    return tally


def _sweep_one(subject: Subject, kinds: Iterable[str], each: int, tally: Tally) -> None:
    original = Original(subject)
    assert not is_caught(subject, Mutant("nothing", subject.ir)), f"{subject.name} does not verify as it is"
    for kind in kinds:
        rng = random.Random(zlib.crc32(f"{subject.name} {kind}".encode()))
        for mutant in itertools.islice(KINDS[kind](subject, rng), each):
            outcome = _outcome(original, mutant)
            tally.counts[kind, outcome] += 1
            if outcome == MISSED:
                tally.missed.append(f"{kind}: {subject.name}: {mutant.about}")


def _outcome(original: Original, mutant: Mutant) -> str:
    if original.is_equivalent(mutant):
        return EQUIVALENT
    return CAUGHT if is_caught(original.subject, mutant, original.patience) else MISSED


def is_caught(subject: Subject, mutant: Mutant, patience: float = 60.0) -> bool:
    """Whether the graph is rejected, does not verify, or does not end."""
    weights = subject.model.state_dict() if mutant.weights is None else mutant.weights
    try:
        mutant.ir.check()
        with limited(patience):
            return not verify_ir_with_state_dict(
                mutant.ir, weights, subject.model, subject.args, test_kwargs=subject.kwargs
            )[0]
    except (TorchIRError, Endless):
        return True
