"""Alignment of two sequences: which items correspond to each other."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

Pair = tuple[int, int]
_MOST_EDITS = 64  # searched at once; bounds the time for long sequences with little in common


def aligned(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """Return positions of equal items, increasing in both sequences.

    Common prefixes and suffixes are paired first. In between, items that occur once in both serve as anchors, so that
    long sequences with few differences are aligned quickly.
    """
    start, end = _common_ends(one, other)
    middle = _anchored(one[start : len(one) - end], other[start : len(other) - end])
    return [
        *((at, at) for at in range(start)),
        *((start + left, start + right) for left, right in middle),
        *((len(one) - back, len(other) - back) for back in range(end, 0, -1)),
    ]


def in_order(pairs: Iterable[Pair]) -> list[Pair]:
    """Return a longest subsequence of these pairs, sorted by first position, whose second positions increase, too."""
    last: list[int] = []  # smallest end of an increasing subsequence of each length
    rows: list[tuple[Pair, int]] = []  # each pair, and the length of the subsequence that it ends
    for pair in pairs:
        length = bisect_left(last, pair[1])
        last[length : length + 1] = [pair[1]]
        rows.append((pair, length))
    found: list[Pair] = []
    wanted = len(last) - 1
    for pair, length in reversed(rows):
        if length == wanted and (not found or pair[1] < found[-1][1]):
            found.append(pair)
            wanted -= 1
    return found[::-1]


def _common_ends(one: Sequence[Hashable], other: Sequence[Hashable]) -> tuple[int, int]:
    """Return the length of the common prefix, and of the common suffix of the rest."""
    shorter = min(len(one), len(other))
    start = next((at for at in range(shorter) if one[at] != other[at]), shorter)
    rest = shorter - start
    return start, next((back for back in range(rest) if one[-1 - back] != other[-1 - back]), rest)


def _anchored(one: Sequence[Hashable], other: Sequence[Hashable]) -> Iterator[Pair]:
    counts = Counter(one), Counter(other)
    places = {item: at for at, item in enumerate(other)}
    once = [(at, places[item]) for at, item in enumerate(one) if counts[0][item] == counts[1][item] == 1]
    left = right = 0
    for stop_left, stop_right in [*in_order(once), (len(one), len(other))]:
        inside = _matches(one[left:stop_left], other[right:stop_right])
        yield from ((left + more, right + again) for more, again in inside)
        if stop_left < len(one):
            yield stop_left, stop_right
        left, right = stop_left + 1, stop_right + 1


def _matches(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """Return pairs of equal items with few edits, segment by segment."""
    if set(one).isdisjoint(other):
        return []
    found: list[Pair] = []
    left = right = 0
    while left < len(one) and right < len(other):
        more, left, right = _fewest_edits(one, other, left, right)
        found += more
    return found


def _fewest_edits(
    one: Sequence[Hashable], other: Sequence[Hashable], start: int, other_start: int
) -> tuple[list[Pair], int, int]:
    """Return the pairs of a segment with the fewest edits, and where the segment ends, after Myers (1986).

    It ends where both do, or after `_MOST_EDITS`. A diagonal is the lead of the position in the first sequence.
    """
    offset = start - other_start
    reached = {1: start}  # diagonal -> furthest position in the first sequence
    history = []
    for edits in range(_MOST_EDITS + 1):
        history.append(reached)
        reached = {}
        for diagonal in range(-edits, edits + 1, 2):
            left, _ = _step(history[-1], diagonal, edits)
            shift = offset + diagonal
            while left < len(one) and left - shift < len(other) and one[left] == other[left - shift]:
                left += 1
            reached[diagonal] = left
            if left >= len(one) and left - shift >= len(other):
                return _walked_back(history, offset, left, left - shift), left, left - shift
    inside = [(left, left - offset - diagonal) for diagonal, left in reached.items()]
    left, right = max((pair for pair in inside if pair[0] <= len(one) and pair[1] <= len(other)), key=sum)
    return _walked_back(history, offset, left, right), left, right


def _step(reached: dict[int, int], diagonal: int, edits: int) -> tuple[int, bool]:
    """Return where one more edit leads on a diagonal, and whether it skips an item of the second sequence."""
    if diagonal == -edits or (diagonal != edits and reached[diagonal - 1] < reached[diagonal + 1]):
        return reached[diagonal + 1], True
    return reached[diagonal - 1] + 1, False


def _walked_back(history: list[dict[int, int]], offset: int, left: int, right: int) -> list[Pair]:
    found: list[Pair] = []
    for edits in reversed(range(len(history))):
        diagonal = left - right - offset
        start, is_of_second = _step(history[edits], diagonal, edits)
        found += [(at, at - offset - diagonal) for at in range(left - 1, start - 1, -1)]
        left = start if is_of_second else start - 1
        right = left - offset - (diagonal + 1 if is_of_second else diagonal - 1)
    return found[::-1]
