"""The stored rows: one JSON file for each family, one line for each case, sorted by name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from tests.captures.python_calls import COUNTS, TOLERANCE
from tests.captures.rows import ROOT, Row

FOLDER = ROOT / "tests" / "data" / "captures"
PYTHON = (3, 11)  # of the stored rows: other versions have other calls, and other lines of calls in several lines
REASON = "reason"  # for the last change of a row; not compared
_PIN = re.compile(r"^(torch|transformers)==([^;\s]+)", re.MULTILINE)


def load(family: str) -> dict[str, Row]:
    file = FOLDER / f"{family}.json"
    rows: dict[str, Row] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return rows


def store(family: str, name: str, row: Row | None) -> None:
    """Store a row, or remove it; a reader at the same time finds the old file or the new one."""
    rows = {**load(family), name: row}
    kept = {each: row for each, row in rows.items() if row is not None}
    written = FOLDER / f"{family}.json.new"
    written.write_text(as_text(kept), encoding="utf-8")
    written.replace(FOLDER / f"{family}.json")


def as_text(rows: Mapping[str, Row]) -> str:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
    return f"{{\n{lines}\n}}\n"


def changes(old: Row | None, new: Row | None, ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return the fields in which two rows differ, each as `old -> new`; one is None if there is no such row."""
    if old is None or new is None:
        return {"case": "new"} if old is None else {"case": "gone"}
    fields = [field for field in {**old, **new} if field not in (REASON, *ignored)]
    return {
        field: f"{old.get(field)} -> {new.get(field)}"
        for field in fields
        if not _is_equal(field, old.get(field), new.get(field))
    }


def _is_equal(field: str, old: object, new: object) -> bool:
    if field in COUNTS and isinstance(old, int) and isinstance(new, int):
        return abs(new - old) <= TOLERANCE * old
    return old == new


def unpinned() -> str:
    """Return the first package whose version is not that of the stored rows, empty if there is none."""
    if sys.version_info[:2] != PYTHON:
        return f"Python {'.'.join(map(str, sys.version_info[:2]))}"
    for package, pin in _PIN.findall((ROOT / "constraints.txt").read_text(encoding="utf-8")):
        try:
            installed = version(package)
        except PackageNotFoundError:
            return f"no {package}"
        if installed.partition("+")[0] != pin:
            return f"{package} {installed}"
    return ""
