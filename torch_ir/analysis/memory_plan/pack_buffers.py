"""Pack buffers into one arena: first fit in several orders, then searches for a smaller arena.

Every second search aims at the goal, the others at an arena between it and the best one so far. A search has few steps;
the next one has another order of the buffers, and knows in which sections there was no room.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from torch_ir.analysis.memory_plan.buffers import Buffer, Sections, count_overlaps, overlapping
from torch_ir.analysis.memory_plan.first_fit import first_fit, in_time_order, top_of
from torch_ir.analysis.memory_plan.packing_search import OutOfStepsError, PackingProblem, PackingSearch

MANY_PAIRS = 500_000  # of buffers that live at the same time: more are placed once, in the order of time
EFFORT = 100  # searches
_MOST_BUFFERS = 1000  # of a search: each step takes time for each buffer
_MOST_WORK = 12_000_000  # of all searches: steps times buffers, a long-lived one for every 8 sections
_SECTIONS = 8
_STEPS = 3  # of a search, for each buffer
_GROWTH = 1.03  # of the steps, from one search to the next
_NOISE = 0.3
_KEPT = 0.9  # of the weight of a section, from one search to the next

Key = Callable[[int], tuple[int, ...]]


def pack(buffers: Sequence[Buffer], capacity: int | None = None, effort: int = EFFORT) -> list[int]:
    """Return an offset for each buffer; the arena is as small as was found, and is not always below the capacity.

    The result is the same for the same arguments. Without a capacity, the goal is the peak of the load.
    """
    if count_overlaps(buffers) > MANY_PAIRS:
        return in_time_order(buffers)
    sections = Sections(buffers)
    goal = sections.peak if capacity is None else max(capacity, sections.peak)
    orders = _orders(buffers, sections)
    overlaps = overlapping(buffers)
    best: list[int] = []
    for order in orders:
        found = first_fit(buffers, order, overlaps)
        if not best or top_of(buffers, found) < top_of(buffers, best):
            best = found
        if top_of(buffers, best) <= goal:
            return best
    return best if len(buffers) > _MOST_BUFFERS else _searched(buffers, goal, best, effort)


def _orders(buffers: Sequence[Buffer], sections: Sections) -> list[list[int]]:
    """Return the orders that place long, large or contended buffers first."""
    loads = [max(sections.load[slice(*span)], default=0) for span in sections.spans]

    def length(index: int) -> int:
        return buffers[index].start - buffers[index].end

    keys: list[Key] = [
        lambda index: (length(index), -buffers[index].area, -loads[index]),
        lambda index: (-loads[index], -buffers[index].area, length(index)),
        lambda index: (-loads[index], length(index), -buffers[index].area),
        lambda index: (-buffers[index].size, length(index)),
        lambda index: (buffers[index].start, -buffers[index].size),
    ]
    return [sorted(range(len(buffers)), key=key) for key in keys]


def _searched(buffers: Sequence[Buffer], goal: int, best: list[int], effort: int) -> list[int]:
    """Search repeatedly for an arena between the goal and the best one so far; a goal that is too small is raised."""
    problem = PackingProblem(buffers)
    ranks = _ranks(buffers, problem.spans)
    per_step = max(len(buffers), sum(end - first for first, end in problem.spans) // _SECTIONS)
    steps = min(float(_STEPS * len(buffers)), _MOST_WORK / per_step)
    work = 0.0
    relaxed = 0.5  # between the goal and the best arena so far
    for number in range(effort):
        top = top_of(buffers, best)
        work += steps * per_step
        if top <= goal or (number and work > _MOST_WORK):
            break
        share = relaxed if number % 2 else 0.0
        target = goal + int((top - 1 - goal) * share)
        search = PackingSearch(problem, target, next(ranks), int(steps))
        try:
            if search.run():
                best = search.offsets
                relaxed /= 2
            else:
                goal = target + 1
        except OutOfStepsError:
            relaxed = (1 + relaxed) / 2 if number % 2 else relaxed
        steps *= _GROWTH
        problem.weights = [1 + _KEPT * (weight - 1) for weight in problem.weights]
    return best


def _ranks(buffers: Sequence[Buffer], spans: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the rank of each buffer for one search after the other: first by size, then with noise.

    In turn, buffers with many sections, with large areas, and with long lives come first.
    """
    keys = [
        [end - first for first, end in spans],
        [buffer.area for buffer in buffers],
        [buffer.end - buffer.start for buffer in buffers],
    ]
    draw = random.Random(0)
    for number in count():
        key, noise = keys[number % len(keys)], 0.0 if number < len(keys) else _NOISE
        values = [
            (-value * (1 + noise * draw.random()), -buffer.area) for value, buffer in zip(key, buffers, strict=True)
        ]
        ranks = [0] * len(buffers)
        for rank, item in enumerate(sorted(range(len(buffers)), key=values.__getitem__)):
            ranks[item] = rank
        yield ranks
