"""A graph with one error is rejected or does not verify, whatever the error."""

import random

import pytest
import torch
from torch import nn

from tests.mutations.equivalence import Original
from tests.mutations.kinds import KINDS, Mutant
from tests.mutations.subjects import CHOSEN, Subject, names
from tests.mutations.sweep import CAUGHT, MISSED, is_caught, sweep
from tests.proof import captured


def test_a_mistake_of_every_kind_is_caught() -> None:
    """One mutant of each kind for some models; 99 of 100 that are other functions are caught."""
    tally = sweep(random.Random(0).sample(CHOSEN, len(CHOSEN)), each=1, most=4)
    assert len(KINDS) > 50
    assert {kind for kind, _ in tally.counts} == set(KINDS)
    assert tally.total(CAUGHT) > 130
    assert tally.score >= 0.99, tally.missed
    assert tally.total(MISSED) == tally.counts["range of a size narrowed", MISSED], tally.missed


@pytest.mark.slow
def test_mistakes_in_the_whole_catalogue() -> None:
    tally = sweep(names(), each=2)
    assert tally.total(CAUGHT) > 2500
    assert tally.score >= 0.99, tally.missed


@pytest.fixture(scope="module")
def original() -> Original:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)).eval()
    x = torch.randn(2, 4)
    return Original(Subject("small", captured(model, x), model, (x,), {}))


def test_the_same_function_is_no_mistake(original: Original) -> None:
    """relu(relu(x)) is relu(x), and such a graph verifies."""
    mutants = KINDS["node applied twice"](original.subject, random.Random(0))
    mutant = next(mutant for mutant in mutants if "relu" in mutant.about)
    assert original.is_equivalent(mutant)
    assert not is_caught(original.subject, mutant)


@pytest.mark.parametrize(
    "kind", ["float attribute off by 1/10", "declared dtype changed", "keys of two weights swapped"]
)
def test_small_and_silent_differences_are_mistakes(kind: str, original: Original) -> None:
    """An epsilon of 1.1e-5, a declaration without uses, two vectors of an untrained model."""
    mutant = next(KINDS[kind](original.subject, random.Random(0)))
    assert not original.is_equivalent(mutant)
    assert is_caught(original.subject, mutant)


def test_the_original_is_right(original: Original) -> None:
    nothing = Mutant("nothing", original.subject.ir.clone())
    assert original.is_equivalent(nothing)
    assert not is_caught(original.subject, nothing)
