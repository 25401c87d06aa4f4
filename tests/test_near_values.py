"""Levels over dtypes and extreme values: no optimised graph is silently wrong."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

from tests.near_values import ROUNDING, SAME, UNCHANGED, WRONG, Case, cases, graph_of, verdict
from tests.patterns import FOLDER, stored

pytestmark = pytest.mark.usefixtures("_one_thread")
_SAMPLE = 60
_HITS = sorted((path.parent.name, path.stem) for path in FOLDER.glob("*/*.json"))
_CHUNKS = 20


def judged(chosen: Iterable[Case]) -> Iterator[tuple[Case, str]]:
    """Cases that there are graphs of, each with its verdict."""
    graphs = stored()
    for case in chosen:
        ir = graph_of(case, graphs)
        if ir is not None:
            yield case, verdict(case, ir)


def wrong(found: Sequence[tuple[Case, str]]) -> str:
    return "\n".join(f"{case}: {said}" for case, said in found if said.startswith(WRONG))


def test_levels_are_sound_on_a_sample() -> None:
    found = list(judged(random.Random(0).sample(cases(_HITS), _SAMPLE)))
    assert not wrong(found), wrong(found)
    assert {SAME, UNCHANGED} <= {said for _, said in found}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_levels_are_sound(chunk: int) -> None:
    found = list(judged(cases(_HITS)[chunk::_CHUNKS]))
    assert not wrong(found), wrong(found)


def measure() -> dict[str, int]:
    """The figures of all cases."""
    found = list(judged(cases(_HITS)))
    counts = Counter(said.partition(":")[0] for _, said in found)
    return {
        "stored and generated graphs": len({case.hit for case, _ in found}),
        "dtypes": len({case.dtype for case, _ in found}),
        "of these, in some dtype and at some level, on 9 kinds of inputs and 4 of weights": len(found),
        **{kind: counts[kind] for kind in (SAME, ROUNDING, UNCHANGED, WRONG)},
    }
