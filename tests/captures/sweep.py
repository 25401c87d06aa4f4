"""Capture cases, in this process or in several, and compare their rows with the stored ones."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.captures.families import FAMILIES
from tests.captures.rows import ROOT, Captured, Case, Row
from tests.captures.stored import changes, load
from tests.state_models.forked import in_children


class Compared(NamedTuple):
    """A case as it is now; without texts if its row is the stored one."""

    family: str
    name: str
    row: Row | None  # None if there is no such case any more
    texts: dict[str, str]
    changed: dict[str, str]

    @property
    def id(self) -> str:
        return f"{self.family}/{self.name}"


def selected(pattern: str) -> Iterator[tuple[str, list[Case]]]:
    """Yield families with their cases that match: `FAMILY`, `NAME` or `FAMILY/NAME`, with `*` and `?`."""
    for family, entry in FAMILIES.items():
        cases = [case for case in entry.cases() if matches(pattern, family, case.name)]
        if cases:
            yield family, cases


def matches(pattern: str, family: str, name: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in (family, name, f"{family}/{name}"))


def compared(family: str, cases: Sequence[Case], ignored: Sequence[str] = (), jobs: int = 1) -> Iterator[Compared]:
    """Capture cases of a family, and compare each with its stored row."""
    FAMILIES[family].prepare(cases)
    compare = partial(_compared, family, load(family), ignored)
    if jobs == 1:
        yield from map(compare, cases)
        return
    _CASES.update({(family, case.name): case for case in cases})
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(partial(_by_name, compare, family), [case.name for case in cases], chunksize=4)


_CASES: dict[tuple[str, str], Case] = {}  # for forked workers: a case holds functions, which cannot be sent


def _by_name(compare: Any, family: str, name: str) -> Compared:
    found: Compared = compare(_CASES[family, name])
    return found


def _compared(family: str, rows: dict[str, Row], ignored: Sequence[str], case: Case) -> Compared:
    found = described(family, case)
    changed = changes(rows.get(case.name), found.row, ignored)
    return Compared(family, case.name, found.row, found.texts if changed else {}, changed)


def described(family: str, case: Case) -> Captured:
    """Return the row and the texts of a case, from a forked child if it leaves something in the process."""
    describe = FAMILIES[family].describe
    found = in_children(describe, [case])[0] if case.is_forked else describe(case)
    return found if isinstance(found, Captured) else Captured({"refused": str(found)}, {})


def gone(pattern: str) -> Iterator[Compared]:
    """Yield stored rows that match, and whose cases do not exist any more."""
    for family, entry in FAMILIES.items():
        known = {case.name for case in entry.cases()}
        for name in load(family).keys() - known:
            if matches(pattern, family, name):
                yield Compared(family, name, None, {}, changes({}, None))


def texts_at(revision: str, ids: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the texts of cases as `torch_ir` of a git revision captures them, with the tests of this one."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "old"
        _git("worktree", "add", "--quiet", "--detach", str(folder), revision)
        try:
            for name in ("tests", "catalogue"):
                shutil.rmtree(folder / name, ignore_errors=True)
                shutil.copytree(ROOT / name, folder / name)
            command = [sys.executable, "-m", "tests.captures", "texts"]
            environment = {**os.environ, "PYTHONPATH": str(folder)}
            text = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                input="\n".join(ids),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
        finally:
            _git("worktree", "remove", "--force", str(folder))
    found: dict[str, dict[str, str]] = json.loads(text.splitlines()[-1])
    return found


def is_revision(name: str) -> bool:
    command = ["git", "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


def first_difference(old: Any, new: Any, path: str = "") -> str:
    """Return the first place at which two JSON values differ, with both values; empty if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict) and list(old) == list(new):
        parts = [(f"{path}.{key}", old[key], new[key]) for key in old]
    elif isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(itertools.zip_longest(old, new))
        parts = [(f"{path}[{index}]{_named(one, other)}", one, other) for index, (one, other) in pairs]
    else:
        return "" if old == new else f"{path.lstrip('.')}: {_shown(old)} -> {_shown(new)}"
    return next((found for place, one, other in parts if (found := first_difference(one, other, place))), "")


def _named(*values: Any) -> str:
    """Return the name and operator of a node, so that its place can be read."""
    node = next((value for value in values if isinstance(value, dict) and "op_type" in value), None)
    return f" {node['name']} = {node['op_type']}" if node else ""


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
