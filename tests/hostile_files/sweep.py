"""All cases in a separate interpreter, which has imported torch and nothing of the surrounding tests."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.hostile_files.case import OUTCOMES

_ROOT = Path(__file__).resolve().parents[2]


class Line(NamedTuple):
    """The result of a case, as `python -m tests.hostile_files --json` prints it."""

    family: str
    name: str
    outcome: str
    expected: str
    detail: str


def sweep(every: int = 1) -> list[Line]:
    """How every case ends, or every Nth."""
    command = [sys.executable, "-m", "tests.hostile_files", "--json", "--every", str(every)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    return [Line(*json.loads(line)) for line in done.stdout.splitlines()]


def measure() -> dict[str, int | float | str]:
    """How many files there are, how many were handled as expected, and how many in each way by family."""
    lines = sweep()
    counts = Counter((line.family, line.outcome) for line in lines)
    families = dict.fromkeys(line.family for line in lines)
    by_family = {f"{family}: {outcome}": counts[family, outcome] for family in families for outcome in OUTCOMES}
    return {
        "hostile files": len(lines),
        "handled as expected": sum(line.outcome == line.expected for line in lines),
        **{key: count for key, count in by_family.items() if count},
    }
