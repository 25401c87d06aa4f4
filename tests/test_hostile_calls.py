"""No arguments make a check crash, hang or use much memory."""

import pytest

from tests.hostile_calls import operators, sweep


@pytest.mark.usefixtures("_forked_python")
def test_a_check_survives_hostile_arguments() -> None:
    """A sample of the registered operators, in a child that would crash or report its memory."""
    start = 2 * (len(operators()) // 3)
    outcome = sweep(2, start, start + 250)
    assert outcome.checked == 250
    assert outcome.refused > 100
    assert (outcome.crashed, outcome.hungry) == ([], [])


@pytest.mark.slow
def test_a_check_survives_hostile_arguments_of_every_operator() -> None:
    """Twelve calls of each."""
    outcome = sweep(12)
    assert (outcome.crashed, outcome.hungry) == ([], [])


@pytest.mark.slow
def test_shape_rules_in_this_process_survive_hostile_arguments() -> None:
    """Two hundred calls of each."""
    outcome = sweep(200, which="listed")
    assert (outcome.crashed, outcome.hungry) == ([], [])
