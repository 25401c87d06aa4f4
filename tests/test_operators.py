"""Every operator that torch.export captures is supported exactly; the exceptions are named, with a reason."""

import pytest

from tests.operators.cases import database
from tests.operators.sweep import CARRIED, sweep, sweep_part

PARTS = 16


def test_a_sample_of_the_database() -> None:
    """Every 96th operator, two sample inputs of each dtype."""
    tally = sweep(database()[5::96], samples=2)
    assert tally.unexplained() == {}
    assert sum(count for (_, outcome), count in tally.counts.items() if outcome == CARRIED) > 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_the_whole_database(part: int) -> None:
    tally = sweep_part(part, PARTS, step=1, samples=4)
    assert tally.unexplained() == {}
