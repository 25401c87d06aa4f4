"""All faults for some kinds of files, in a separate process that forks: `python -m tests.faults.sweep JSON`."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.faults.crowds import threads, writers_and_readers
from tests.faults.killing import Place, as_other_systems, fail_at_every_step, kill_at_every_step, kill_at_random
from tests.faults.kinds import KINDS, Kind

LIGHT = [name for name, kind in KINDS.items() if not kind.needs_torch]
HEAVY = [name for name, kind in KINDS.items() if kind.needs_torch]
Row = dict[str, Any]
_ERRORS = (OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError())


def sweep(kinds: list[str], kills: int, rounds: int, *, other_systems: bool = False, is_full: bool = True) -> list[Row]:
    """Return the outcomes of each kind of file after every fault; without `is_full`, after one of each sort."""
    asked = {"kinds": kinds, "kills": kills, "rounds": rounds, "other_systems": other_systems, "is_full": is_full}
    command = [sys.executable, "-m", "tests.faults.sweep", json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[2])
    rows: list[Row] = json.loads(done.stdout)
    return rows


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    rows = [
        *sweep(LIGHT[:1], 1000, 250),
        *sweep(LIGHT[1:], 100, 50),
        *sweep(HEAVY, 50, 24),
    ]
    others = [*sweep(LIGHT, 25, 24, other_systems=True), *sweep(["golden pack"], 10, 8, other_systems=True)]
    every = [*rows, *others]
    return {
        **{
            f"kill -9 at random while saving {row['kind']}: whole afterwards": f"{row['whole']} of {row['kills']}"
            for row in rows
        },
        "of all these, killed before the new file was in place": sum(row["before"] for row in rows),
        "kill -9 before each call of the system: kills": sum(row["steps"] for row in every),
        "calls of the system that failed, interrupted or ran out of memory": sum(row["failures"] for row in every),
        "saves by two writers and by eight threads at one target": sum(row["saves"] for row in every),
        "loads meanwhile": sum(row["loads"] for row in every),
        "of all these: damaged or missing files, failed loads, files too many after the next save": sum(
            len(row["wrong"]) for row in every
        ),
    }


def _examine(kind: Kind, kills: int, rounds: int, is_full: bool) -> Row:
    with tempfile.TemporaryDirectory() as room:
        place = Place(kind, Path(room))
        steps = [kill_at_every_step(place, over_old=over_old) for over_old in ((True, False) if is_full else (True,))]
        failures = [fail_at_every_step(place, error) for error in (_ERRORS if is_full else _ERRORS[:1])]
        at_random = kill_at_random(place, kills, seed=0)
        crowds = [
            writers_and_readers(place, rounds, readers=0 if kind.is_read_by_others else 2),
            threads(place, 8, max(1, rounds // 8)),
        ]
        wrong = [wrong for tally in (*steps, *failures, at_random) for wrong in tally.wrong]
        wrong += [crowd.wrong or f"{crowd.failed} failed" for crowd in crowds if crowd.wrong or crowd.failed]
        return {
            "kind": kind.name,
            "kills": kills,
            "whole": kills - len(at_random.wrong),
            "within": at_random.within,
            "before": at_random.before,
            "most_left": at_random.most_left,
            "steps": sum(tally.kills for tally in steps),
            "failures": sum(tally.kills for tally in failures),
            "saves": sum(crowd.saves for crowd in crowds),
            "loads": sum(crowd.loads for crowd in crowds),
            "wrong": wrong,
        }


def _main(asked: dict[str, Any]) -> None:
    kinds = [KINDS[name] for name in asked["kinds"]]
    if any(kind.needs_torch for kind in kinds):
        import torch

        importlib.import_module("torch_ir.golden.folders")
        torch.set_num_threads(1)  # a process with threads of torch's cannot be forked
    if asked["other_systems"]:
        as_other_systems()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # where verbs print to
        rows = [_examine(kind, asked["kills"], asked["rounds"], asked["is_full"]) for kind in kinds]
    print(json.dumps(rows))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
