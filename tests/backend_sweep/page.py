"""The table of refusals and deviations as docs/backends.md shows it.

python -m tests.backend_sweep.page
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_ir.backends.deviations import REFUSED, rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"
START, END = "<!-- deviations -->\n", "<!-- end deviations -->"


def table_text() -> str:
    """A line for each back end, condition and reason, with all operators that share them."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = defaultdict(list)
    for row in rows():
        groups[row.effect, row.backend, _condition(row.when), row.reason, row.version].append(row.operator)
    lines = ["| back end | operators | when | what it does | |", "|---|---|---|---|---|"]
    for (effect, backend, when, reason, _), operators in sorted(groups.items(), key=lambda item: item[0][0] != REFUSED):
        named = ", ".join(f"`{name.removeprefix('aten.').removesuffix('.default')}`" for name in sorted(set(operators)))
        lines.append(f"| {backend} | {named.replace('`*`', 'all')} | {when} | {reason} | {effect} |")
    versions = ", ".join(sorted({row.version for row in rows()}))
    return "\n".join([*lines, "", f"Measured with {versions}.", ""])


def _condition(when: Mapping[str, Any]) -> str:
    told = []
    for kind, wanted in when.items():
        if kind == "attr":
            told += [f"{name}={value}" for name, value in wanted.items()]
        elif kind == "at_least":
            told += [f"{name} ≥ {value}" for name, value in wanted.items()]
        elif kind == "at_most":
            told += [f"{name} ≤ {value}" for name, value in wanted.items()]
        elif kind in ("dtype", "values"):
            told.append(f"{'values: ' if kind == 'values' else ''}{', '.join(wanted)}")
        elif kind == "given":
            told.append(f"with {', '.join(wanted)}")
        else:
            told.append(
                {
                    "rank": f"an input of {wanted} dimensions",
                    "empty": "no elements",
                    "filled": "into a tensor of one value",
                    "open": "open sizes",
                    "overlaps": "of a part of the tensor into it",
                    "rounds": "read by an operator with more digits",
                    "storage": "a view",
                }[kind]
            )
    return "; ".join(told)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = re.compile(re.escape(START) + ".*?" + re.escape(END), re.DOTALL)
    assert found.search(page), "the page has no place for the table"
    PAGE.write_text(found.sub(lambda _: f"{START}{table_text()}{END}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
