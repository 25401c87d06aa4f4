"""Two sequences side by side: which items of the one belong to which of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher

Pair = tuple[int, int]


def aligned(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """Places of equal items, in the order of both.

    What both begin and end with is paired at once. Between, items that occur once in both hold the sides together, so
    that long sequences that differ in a few places are told apart quickly.
    """
    shorter = min(len(one), len(other))
    start = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    rest = shorter - start
    end = next((back for back in range(rest) if one[-1 - back] != other[-1 - back]), rest)
    middle = _anchored(one[start : len(one) - end], other[start : len(other) - end])
    return [
        *((at, at) for at in range(start)),
        *((start + left, start + right) for left, right in middle),
        *((len(one) - back, len(other) - back) for back in range(end, 0, -1)),
    ]


def _anchored(one: Sequence[Hashable], other: Sequence[Hashable]) -> Iterator[Pair]:
    places = [{item: at for at, item in enumerate(side)} for side in (one, other)]
    counts = Counter(one), Counter(other)
    sides = [[item for item in side if counts[0][item] == counts[1][item] == 1] for side in (one, other)]
    anchors = [(places[0][sides[0][left]], places[1][sides[1][right]]) for left, right in _matches(*sides)]
    left = right = 0
    for stop_left, stop_right in [*anchors, (len(one), len(other))]:
        inside = _matches(one[left:stop_left], other[right:stop_right])
        yield from ((left + more, right + again) for more, again in inside)
        if stop_left < len(one):
            yield stop_left, stop_right
        left, right = stop_left + 1, stop_right + 1


def _matches(one: Sequence[Hashable], other: Sequence[Hashable]) -> Iterator[Pair]:
    if one and other:
        for left, right, size in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks():
            yield from ((left + more, right + more) for more in range(size))
