"""Packing of buffers: no overlap, never below the peak, optimal for small problems, near the peak for hard ones."""

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_ir.analysis.memory_plan.buffers import Buffer, Sections
from torch_ir.analysis.memory_plan.first_fit import in_time_order
from torch_ir.analysis.memory_plan.pack_buffers import pack

PUBLISHED = Path(__file__).with_name("minimalloc")
CAPACITY = 1 << 20


@st.composite
def buffers(draw: st.DrawFn, most: int) -> list[Buffer]:
    steps = draw(st.integers(1, 12))
    spans = st.tuples(st.integers(0, steps - 1), st.integers(1, 6), st.integers(0, 9))
    return [
        Buffer(start, min(steps, start + length), size) for start, length, size in draw(st.lists(spans, max_size=most))
    ]


def arena(found: list[Buffer], offsets: list[int]) -> int:
    """The size of the arena; fails if two buffers share a unit at some step."""
    taken: dict[tuple[int, int], int] = {}
    for number, (buffer, offset) in enumerate(zip(found, offsets, strict=True)):
        for step in range(buffer.start, buffer.end):
            for unit in range(offset, offset + buffer.size):
                assert taken.setdefault((step, unit), number) == number
    return max((unit + 1 for _, unit in taken), default=0)


def peak(found: list[Buffer]) -> int:
    return max((sum(b.size for b in found if b.start <= step < b.end) for step in range(12)), default=0)


def lowest(found: tuple[Buffer, ...]) -> int:
    """The arena if each buffer in turn is put at the lowest offset where it is free."""
    placed: list[tuple[Buffer, int]] = []
    for buffer in found:
        others = [(other, at) for other, at in placed if other.start < buffer.end and buffer.start < other.end]
        tries = sorted([0, *(at + other.size for other, at in others)])
        fits = (at for at in tries if all(at >= low + other.size or at + buffer.size <= low for other, low in others))
        placed.append((buffer, next(fits)))
    return max((at + buffer.size for buffer, at in placed), default=0)


@given(buffers(30))
@settings(max_examples=60, deadline=None)
def test_buffers_do_not_overlap(found: list[Buffer]) -> None:
    assert arena(found, pack(found, effort=4)) >= peak(found)


@given(buffers(6))
@settings(max_examples=60, deadline=None)
def test_small_problems_are_solved_exactly(found: list[Buffer]) -> None:
    """The best of all orders, each buffer as low as possible, is an optimum."""
    assert arena(found, pack(found)) == min(map(lowest, permutations(found)))


def test_an_optimum_above_the_peak_is_recognised() -> None:
    """Seven buffers whose load is never above 4, but which need 5."""
    spans = [(0, 2, 2), (2, 5, 1), (0, 3, 2), (2, 4, 1), (6, 7, 2), (4, 7, 2), (3, 6, 1)]
    found = [Buffer(*span) for span in spans]
    assert (peak(found), arena(found, pack(found)), min(map(lowest, permutations(found)))) == (4, 5, 5)


@given(buffers(30))
@settings(max_examples=60, deadline=None)
def test_buffers_in_time_order_do_not_overlap(found: list[Buffer]) -> None:
    """The way of graphs with too many live tensors for more."""
    assert arena(found, in_time_order(found)) >= peak(found)


def test_many_live_tensors_take_no_square_of_time() -> None:
    """All 50,000 live at the same time: 1.25 billion pairs."""
    assert pack([Buffer(0, 1, 1)] * 50_000) == list(range(50_000))


def test_the_example_of_minimalloc() -> None:
    """The example of its README, which fits in 12."""
    found = [Buffer(0, 3, 4), Buffer(3, 9, 4), Buffer(0, 9, 4), Buffer(9, 21, 4), Buffer(0, 21, 4)]
    assert arena(found, pack(found)) == 12


def published(name: str) -> list[Buffer]:
    lines = (PUBLISHED / f"{name}.1048576.csv").read_text().split()[1:]
    return [Buffer(*map(int, line.split(",")[1:])) for line in lines]


def top(found: list[Buffer], offsets: list[int]) -> int:
    """The size of the arena; fails if two buffers overlap, pair by pair."""
    placed = list(zip(found, offsets, strict=True))
    for number, (one, low) in enumerate(placed):
        for other, at in placed[:number]:
            together = one.start < other.end and other.start < one.end
            assert not together or low + one.size <= at or at + other.size <= low
    return max(at + buffer.size for buffer, at in placed)


@pytest.mark.parametrize("name", ["A", "B", "E"])
def test_published_hard_problems_are_solved(name: str) -> None:
    """The search fills the capacity exactly; first fit alone needs 29 to 37 % more."""
    found = published(name)
    assert top(found, pack(found, effort=0)) > 1.25 * CAPACITY
    assert top(found, pack(found)) == CAPACITY


@given(buffers(12))
@settings(max_examples=100, deadline=None)
def test_sections_say_which_buffers_are_needed_together(found: list[Buffer]) -> None:
    """Also that the largest load of a section is the peak."""
    sections = Sections(found)
    for one, (first, end) in zip(found, sections.spans, strict=True):
        for other, (other_first, other_end) in zip(found, sections.spans, strict=True):
            together = one.start < other.end and other.start < one.end
            assert together == (first < other_end and other_first < end)
    assert sections.peak == peak(found)
