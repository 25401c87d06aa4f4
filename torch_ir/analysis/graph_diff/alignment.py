"""Two sequences side by side: which items of the one belong to which of the other."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence

Pair = tuple[int, int]
_MOST_EDITS = 64  # that are looked for at once; the time for long sequences that have little in common grows with it


def aligned(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[Pair]:
    """Places of equal items, in the order of both.

    What both begin and end with is paired at once. Between, items that occur once in both hold the sides together, so
    that long sequences that differ in a few places are told apart quickly.
    """
    start, end = _common_ends(one, other)
    middle = _anchored(one[start : len(one) - end], other[start : len(other) - end])
    return [
        *((at, at) for at in range(start)),
        *((start + left, start + right) for left, right in middle),
        *((len(one) - back, len(other) - back) for back in range(end, 0, -1)),
    ]


def in_order(pairs: Iterable[Pair]) -> list[Pair]:
    """The most of these pairs, sorted by their first places, of which the second places rise too."""
    last: list[int] = []  # the lowest end of a rising row of each length
    rows: list[tuple[Pair, int]] = []  # each pair, and how long a row it ends
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
    """How many items both begin with, and how many of the rest both end with."""
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
    """Equal items that leave few others, found one stretch after the other."""
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
    """The equal items of a stretch that leave the fewest others, and where the stretch ends, after Myers (1986).

    It ends where both do, or as far as so many edits lead. A diagonal is how much further the walk is in the first.
    """
    offset = start - other_start
    reached = {1: start}  # from a diagonal to the furthest place in the first
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
    """Where one more edit leads to on a diagonal, and whether an item of the second is passed over for it."""
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
