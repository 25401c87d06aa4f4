"""Figures that pages quote are those that were measured, and the three READMEs quote the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, pages, read_blocks

DOCS = ROOT / "docs"
READMES = sorted(ROOT.glob("README*.md"))
MEASURED = {DOCS / "benchmarks.md", DOCS / "fast-capture-coverage.md"}
QUOTING = sorted({*(page for page in pages() if page not in MEASURED), *READMES})
_LINK = re.compile(r"\[([^\]]+)\]\((?:docs/)?([\w-]+\.md)(?:#([\w-]+))?\)")
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_TIMES = re.compile(r"(\d[\d.]*)(?: to (\d[\d.]*))? times faster")
# From the heading of a section to the mark of its table; a quoted range is that of the column of ratios.
SECTIONS = {
    "models-of-other-packages-packages": "packages",
    "extraction-extract": "extract",
    "the-first-call-first_call": "first_call",
    "a-deep-model-deep": "deep",
    "very-large-language-models-huge": "huge",
    "architectures-architectures": "architectures",
}
RANGES = {"extraction-extract": "extract", "the-first-call-first_call": "first_call"}


def table(mark: str) -> list[list[str]]:
    """Return the rows of a table of the benchmarks, its header first."""
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end {mark} -->", text, re.DOTALL)
    lines = [line for line in found.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def spellings(number: str) -> set[str]:
    """Return how a measured number may be quoted: as it is, or as a whole number from ten on."""
    plain = number.replace(",", "")
    return {plain} | ({str(round(float(plain)))} if float(plain) >= 10 else set())


def numbers_of(*marks: str) -> set[str]:
    """Return every number of some tables, in each of its spellings."""
    cells = (cell for mark in marks for row in table(mark) for cell in row)
    return {spelling for cell in cells for number in _NUMBER.findall(cell) for spelling in spellings(number)}


def ratios(mark: str) -> list[str]:
    """Return the column of a table that says how many times faster something is."""
    header, *rows = table(mark)
    column = next(index for index, name in enumerate(header) if name.startswith("times faster"))
    return [_NUMBER.findall(row[column])[0] for row in rows]


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in list(read_blocks(page.name, lines)):
        lines[block.start : block.stop] = [""] * (block.stop - block.start)
    return "\n".join(lines)


def quotes(page: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the links of a page whose text has numbers of several digits: the page, the heading, and the numbers."""
    for text, target, anchor in _LINK.findall(prose(page)):
        found = [number.replace(",", "") for number in _NUMBER.findall(text) if len(number) > 1]
        if found:
            yield target, anchor, found


def test_quoted_benchmarks_are_in_the_table() -> None:
    """A range is the whole range; any other number is one of that table."""
    every = [(page, *quote) for page in QUOTING for quote in quotes(page)]
    for page, target, anchor, found in every:
        if target == "benchmarks.md" and anchor in RANGES:
            low, *_, high = sorted(ratios(RANGES[anchor]), key=float)
            assert [number in spellings(end) for number, end in zip(found, (low, high), strict=True)] == [True, True], (
                page
            )
        elif target == "benchmarks.md" and anchor in SECTIONS:
            assert set(found) <= numbers_of(SECTIONS[anchor]), (page, anchor, found)


def test_how_many_times_faster_is_measured() -> None:
    measured = numbers_of("packages", "extract", "first_call", "deep", "architectures", "files", "deep_files")
    quoted = {
        page: {number for pair in _TIMES.findall(prose(page)) for number in pair if number} - measured
        for page in QUOTING
    }
    assert {page: numbers for page, numbers in quoted.items() if numbers} == {}


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_figures_of_other_pages_are_on_those_pages(page: Path) -> None:
    """But for the sum of the architectures, which is computed here."""
    for target, _, found in quotes(page):
        text = (DOCS / target).read_text(encoding="utf-8").replace(",", "")
        if target == "coverage.md":
            rows = re.findall(r"^\| transformers: .+? \| (\d+) \| \d+ \| \d+ \| (\d+) \|$", text, re.MULTILINE)
            wanted = {str(sum(map(int, column))) for column in zip(*rows, strict=True)}
            assert set(found) == wanted
        elif target != "benchmarks.md":
            assert [number for number in found if number not in text] == [], target


def test_the_three_readmes_quote_the_same_figures() -> None:
    """The same links with the same numbers, in the order of each language, and the same numbers elsewhere."""
    first, *others = ([(target, anchor, sorted(found)) for target, anchor, found in quotes(page)] for page in READMES)
    assert len(first) > 5
    assert others == [first, first]
    spoken = [sorted(number for number in _NUMBER.findall(prose(page)) if len(number) > 1) for page in READMES]
    assert spoken[1:] == spoken[:-1]
