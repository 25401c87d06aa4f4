"""Pack buffers into one arena: first fit in several orders, then searches for a smaller arena.

The searches differ in the order in which buffers are tried (long, large, contended or early ones first), in how many
are compared as the next one, and in the capacity that they aim at. If these are not enough, the orders are changed at
random, with those buffers earlier for which there was no room.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from torch_ir.analysis.memory_plan.buffers import Buffer, Sections, count_overlaps, overlapping
from torch_ir.analysis.memory_plan.first_fit import first_fit, in_time_order, top_of
from torch_ir.analysis.memory_plan.packing_search import OutOfStepsError, PackingSearch

MANY_PAIRS = 500_000  # of buffers that live at the same time: more are placed once, in the order of time
EFFORT = 30  # searches
_MOST_BUFFERS = 1000  # of a search: each step takes time for each buffer
_MOST_WORK = 12_000_000  # of all searches: steps times buffers
_STEPS = 10  # of one of the first ten searches, for each buffer; later ones have more
_PLAIN = 30  # searches without changes of the orders
_LOOKED_AT = (8, 5, 3)  # candidates that a search compares
_TARGETS = (0.0, 0.2, 0.1, 0.3)  # between the goal and the best arena so far
_NOISE = 0.05
_BLAME = 3.0

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
    return best if len(buffers) > _MOST_BUFFERS else _searched(buffers, goal, orders, best, effort)


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


def _searched(
    buffers: Sequence[Buffer], goal: int, orders: Sequence[Sequence[int]], best: list[int], effort: int
) -> list[int]:
    """Search repeatedly for an arena between the goal and the best one so far; a goal that is too small is raised."""
    draw = random.Random(0)
    blame = [0.0] * len(buffers)
    steps = _STEPS * len(buffers)
    for number in range(min(effort, max(1, _MOST_WORK // (steps * len(buffers))))):
        top = top_of(buffers, best)
        if top <= goal:
            break
        order = orders[number % len(orders)]
        if number >= _PLAIN:
            order = _changed(order, blame if number % 2 else [0.0] * len(blame), draw)
        target = goal + int((top - 1 - goal) * _TARGETS[number // len(orders) % len(_TARGETS)])
        looked_at = _LOOKED_AT[number // len(orders) % len(_LOOKED_AT)]
        search = PackingSearch(buffers, target, _ranks(order), steps * (1 + number // 10), looked_at)
        try:
            if search.run():
                best = search.offsets
            else:
                goal = target + 1
        except OutOfStepsError:
            pass
        blame = [0.9 * old + new for old, new in zip(blame, search.blamed, strict=True)]
    return best


def _changed(order: Sequence[int], blame: Sequence[float], draw: random.Random) -> list[int]:
    """Return the order with random changes, and with blamed buffers earlier."""
    most = max(blame) or 1.0
    place = {
        item: at / len(order) - _BLAME * blame[item] / most + _NOISE * draw.random() for at, item in enumerate(order)
    }
    return sorted(order, key=place.__getitem__)


def _ranks(order: Sequence[int]) -> list[int]:
    ranks = [0] * len(order)
    for rank, item in enumerate(order):
        ranks[item] = rank
    return ranks
