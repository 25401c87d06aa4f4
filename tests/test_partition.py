"""Optimal cuts of a pipeline, compared with all possible cuts."""

from __future__ import annotations

import math
import random
from itertools import combinations, pairwise

import pytest

from torch_ir.pipeline.stage_cuts import Load, Partition


def line(seed: int) -> list[Load]:
    """Up to nine segments with random loads."""
    draw = random.Random(seed)
    return [
        Load(
            seconds=draw.choice([0.0, 1.0, 2.0, 3.5, 7.0]),
            alive=(alive := draw.randrange(5)),
            inner=alive + draw.randrange(3),
            given=draw.randrange(4),
            weights={number: draw.randrange(1, 6)},
            crossing=draw.randrange(1, 9),
        )
        for number in range(draw.randrange(3, 10))
    ]


def ways(loads: list[Load], stages: int) -> list[tuple[int, ...]]:
    """The starts of all ways to have so many stages."""
    return [(0, *rest) for rest in combinations(range(1, len(loads)), stages - 1)]


def ranges(loads: list[Load], starts: tuple[int, ...]) -> list[list[Load]]:
    return [loads[start:end] for start, end in pairwise((*starts, len(loads)))]


def slowest(loads: list[Load], starts: tuple[int, ...]) -> float:
    return max(sum(load.seconds for load in stage) for stage in ranges(loads, starts))


def held_by(stage: list[Load]) -> float:
    kept = {weight: size for load in stage for weight, size in load.weights.items()}
    return sum(kept.values()) + stage[0].given + max(stage[0].alive, *(load.inner for load in stage[1:]), 0.0)


def held(loads: list[Load], starts: tuple[int, ...]) -> float:
    return max(map(held_by, ranges(loads, starts)))


@pytest.mark.parametrize("seed", range(40))
def test_the_best_of_all_ways_is_found(seed: int) -> None:
    """The slowest stage is as fast as it can be; within five per cent, least is sent, and then most evenly."""
    loads = line(seed)
    for stages in range(1, len(loads) + 1):
        partition = Partition(loads)
        best = min(slowest(loads, starts) for starts in ways(loads, stages))
        assert partition.slowest(stages) == pytest.approx(best)
        starts = partition.starts(stages, best * 1.05)
        allowed = [way for way in ways(loads, stages) if slowest(loads, way) <= best * 1.05]
        assert starts in allowed
        assert _rank(loads, starts) == pytest.approx(min(_rank(loads, way) for way in allowed))


def _rank(loads: list[Load], starts: tuple[int, ...]) -> tuple[float, float]:
    sent = sum(loads[start].crossing for start in starts[1:])
    return sent, sum(sum(load.seconds for load in stage) ** 2 for stage in ranges(loads, starts))


@pytest.mark.parametrize("seed", range(40))
def test_stages_fit_into_memory(seed: int) -> None:
    """The fewest stages, and among those the best; an error if nothing fits."""
    loads = line(seed)
    memory = random.Random(-seed - 1).randrange(7, 20)
    partition = Partition(loads, memory)
    every = [way for stages in range(1, len(loads) + 1) for way in ways(loads, stages)]
    fitting = [way for way in every if held(loads, way) <= memory]
    fewest = min(map(len, fitting), default=0)
    assert partition.fewest() == fewest
    if not fewest:
        return
    best = min(slowest(loads, way) for way in fitting if len(way) == fewest)
    assert partition.slowest(fewest) == pytest.approx(best)
    assert partition.starts(fewest, best) in fitting


@pytest.mark.parametrize("seed", range(40))
def test_stages_that_turn_out_too_large_are_left_out(seed: int) -> None:
    """Also where a longer stage would fit that starts earlier; the fewest of all other ways are found."""
    loads, draw = line(seed), random.Random(seed)
    partition = Partition(loads)
    most = [draw.randrange(start, len(loads)) + 1 for start in range(len(loads))]  # where a stage may end at most
    for start, end in enumerate(most):
        partition.shorten(start, end + 1)
    for stages in range(1, len(loads) + 1):
        allowed = [way for way in ways(loads, stages) if _is_within(way, most)]
        starts = partition.starts(stages, math.inf)
        assert starts in allowed if allowed else starts == ()
        if allowed and not any(_is_within(way, most) for fewer in range(1, stages) for way in ways(loads, fewer)):
            assert partition.fewest() == stages
            assert partition.slowest(stages) == pytest.approx(min(slowest(loads, way) for way in allowed))


def _is_within(starts: tuple[int, ...], most: list[int]) -> bool:
    return all(end <= most[start] for start, end in pairwise((*starts, len(most))))


def test_a_weight_of_several_segments_is_held_once() -> None:
    """Two segments that share a weight fit where two weights would not."""
    tied = [Load(1.0, weights={"w": 6.0}), Load(1.0, weights={"w": 6.0})]
    apart = [Load(1.0, weights={"v": 6.0}), Load(1.0, weights={"w": 6.0})]
    assert Partition(tied, 8).fewest() == 1
    assert Partition(apart, 8).fewest() == 2


def test_ten_thousand_segments_are_no_burden() -> None:
    """Every stage within a thousandth of the mean, and the cuts where nothing crosses."""
    draw = random.Random(0)
    loads = [Load(1 + draw.random(), crossing=float(number % 10 != 0)) for number in range(10_000)]
    partition = Partition(loads)
    best = partition.slowest(8)
    starts = partition.starts(8, best * 1.01)
    assert best <= sum(load.seconds for load in loads) / 8 * 1.001
    assert all(start % 10 == 0 for start in starts)
    assert partition.slowest(1) == pytest.approx(math.fsum(load.seconds for load in loads))
