"""The table of docs/security.md: each family, its cases, and their results."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.hostile_files.case import GOOD, Case

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
_SPECIAL = re.compile("[$*<]")  # of Markdown
START, END = "<!-- hostile files -->\n", "<!-- end hostile files -->"


def table(cases: Sequence[Case]) -> str:
    """Return the number of files of each family by result, and their names."""
    families = list(dict.fromkeys(case.family for case in cases))
    counts = Counter((case.family, case.expected) for case in cases)
    rows = [[family, *(counts[family, outcome] for outcome in GOOD)] for family in families]
    rows.append(["all", *(sum(counts[family, outcome] for family in families) for outcome in GOOD)])
    lines = [
        f"| family | files | {' | '.join(GOOD)} |",
        f"|---|---|{'---|' * len(GOOD)}",
        *(f"| {family} | {sum(numbers)} | {' | '.join(map(str, numbers))} |" for family, *numbers in rows),
    ]
    for family in families:
        names = "; ".join(_SPECIAL.sub(r"\\\g<0>", case.name) for case in cases if case.family == family)
        lines += ["", f"**{family}**: {names}."]
    return "\n".join(lines)


def table_on_page() -> str:
    """Return the text between the marks."""
    _, opened, rest = PAGE.read_text(encoding="utf-8").partition(START)
    text, closed, _ = rest.partition(END)
    assert opened, f"{PAGE.name} has no marks for the table"
    assert closed, f"{PAGE.name} has no marks for the table"
    return text.rstrip("\n")


def replace_table(text: str) -> None:
    """Put the table between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}{text}\n{END}{after}", encoding="utf-8")
