"""Generated models with state: each graph equals eager, call after call, or the capture refuses or warns."""

import random

import pytest

from tests.state_models.case import Case, ambient_cases, random_cases, single_cases
from tests.state_models.forked import in_children
from tests.state_models.oracle import eager
from tests.state_models.piece import PIECES
from tests.state_models.sweep import REFUSED, SAME, WARNED, all_cases, swept, wrong

SEED, SINGLE, AMBIENT, COMPOSED = 20, 5, 1, 1


def sample() -> list[Case]:
    draw = random.Random(SEED)
    drawn = [*draw.sample(single_cases(), SINGLE), *draw.sample(ambient_cases(), AMBIENT)]
    return [*drawn, *random_cases(COMPOSED, SEED)]


def test_a_sample_is_never_silently_wrong() -> None:
    """And the comparison distinguishes kept state, lost state with a warning, and a refusal."""
    cases, names = sample(), {"CountsInBuffer": SAME, "Counts": WARNED, "AssignsDataOfParameter": REFUSED}
    verdicts = swept([*cases, *(Case((name,)) for name in names)])
    known = [verdict.kind for verdict in verdicts[len(cases) :]]
    del verdicts[len(cases) :]
    assert wrong(cases, verdicts) == []
    assert {SAME, WARNED} <= {verdict.kind for verdict in verdicts}
    assert known == list(names.values())


def test_the_results_of_eager_show_a_state_that_changes() -> None:
    """Call after call: a graph without the state would be found."""
    first, second = in_children(eager, [Case(("Counts",))])[0][:2]
    assert not first.equal(second)


def test_every_piece_is_generated() -> None:
    names = {name for kinds in PIECES.values() for name in kinds}
    assert {name for case in single_cases() for name in case.pieces} == names
    assert len(names) > 100


@pytest.mark.slow
def test_nothing_is_silently_wrong() -> None:
    cases = all_cases()
    assert wrong(cases, swept(cases)) == []
