"""docs/reliability.md: every sweep has its table, with the current number of cases, and no failures."""

import re

from tests.hostile_files import CASES
from tests.near_misses import TWISTS
from tests.reliability import PAGE, SECTIONS, as_table, with_table
from tests.test_near_misses import HITS

_NONE = re.compile(
    r"wrong|inputs that failed|crashes|with another meaning|disagree|files too many"
)  # of which there must be none


def tables() -> dict[str, dict[str, str]]:
    """The rows of every table by section."""
    found = {}
    for name, text in re.findall(r"<!-- (?!end )(.+?) -->\n(.*?)<!-- end \1 -->", PAGE.read_text(), re.DOTALL):
        found[name] = dict(re.findall(r"^\| (\S.*?) \| (.+?) \|$", text, re.MULTILINE))
    return found


def test_every_sweep_has_its_table() -> None:
    assert list(tables()) == list(SECTIONS)
    assert [name for name, rows in tables().items() if len(rows) < 2] == []


def test_no_table_tells_of_a_failure() -> None:
    wrong = [
        (name, row, figure) for name, rows in tables().items() for row, figure in rows.items() if _NONE.search(row)
    ]
    assert len(wrong) > 6
    assert [found for found in wrong if found[2] != "0"] == []


def test_tables_are_those_of_todays_cases() -> None:
    found = tables()
    assert found["hostile files"]["hostile files"] == str(len(CASES))
    assert found["near misses"]["rules with a stored graph"] == str(len(HITS))
    assert found["near misses"]["kinds of near misses"] == str(len(TWISTS))


def test_a_table_is_replaced_between_its_marks() -> None:
    page = "before\n<!-- one -->\nold\n<!-- end one -->\nafter\n"
    made = with_table(page, "one", as_table({"of them": 1234, "in words": "all"}))
    rows = "| | |\n|---|---|\n| of them | 1,234 |\n| in words | all |"
    assert made == f"before\n<!-- one -->\n{rows}\n<!-- end one -->\nafter\n"
