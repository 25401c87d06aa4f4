"""Parameters of a sweep: a seeded sample of them in every run, the others where every sweep is in full."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

_Case = TypeVar("_Case")


def sampled(cases: Sequence[_Case], count: int, name: Callable[[_Case], str]) -> list[ParameterSet]:
    """Return every case by name; those outside the sample are slow."""
    chosen = set(random.Random(0).sample(range(len(cases)), count))
    return [
        pytest.param(case, id=name(case), marks=() if index in chosen else pytest.mark.slow)
        for index, case in enumerate(cases)
    ]
