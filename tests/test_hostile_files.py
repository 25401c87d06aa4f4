"""A hostile file ends in a typed error with rule and path, or is shown escaped, without side effects."""

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hostile_files import CASES, FAMILIES, case
from tests.hostile_files.documents import written
from tests.hostile_files.openings import OPENINGS
from tests.hostile_files.runner import run
from tests.hostile_files.sweep import sweep
from tests.hostile_files.table import table, table_on_page


@pytest.mark.usefixtures("_forked_python")
@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_files_end_as_they_must(every: int) -> None:
    """Each in a process with limits: refused by its rule at its place, or read without harm, and no canary stirs."""
    lines = sweep(every)
    assert [(line.family, line.name) for line in lines] == [(one.family, one.name) for one in CASES[::every]]
    assert [line for line in lines if line.outcome != line.expected] == []


def test_there_are_many_of_every_kind() -> None:
    names = Counter((one.family, one.name) for one in CASES)
    assert max(names.values()) == 1
    assert all(len(family) >= 9 for family in FAMILIES)
    assert sum(one.expected != case.LOADED for one in CASES) > 500


def test_the_page_lists_every_file() -> None:
    """Refresh it with `python -m tests.hostile_files --write`."""
    assert table_on_page() == table(CASES)


def _read_natively(file: Path) -> None:
    ctypes.CDLL(None).open(os.fsencode(file.parents[1] / "canary" / "secret.txt"), os.O_RDONLY)


def _raise(file: Path) -> None:
    raise LookupError(file.name)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (_read_natively, case.SIDE_EFFECT),
        (lambda file: file.with_name("pwned").touch(), case.SIDE_EFFECT),
        (lambda file: os.environ.update(PWNED="1"), case.SIDE_EFFECT),
        (lambda file: torch.manual_seed(5), case.SIDE_EFFECT),
        (lambda file: os.system("true"), case.SIDE_EFFECT),
        (lambda file: eval("[].append(1)"), case.SIDE_EFFECT),
        (lambda file: bytearray(1 << 31), case.MEMORY),
        (lambda file: os.kill(os.getpid(), signal.SIGKILL), case.CRASHED),
        (_raise, case.RAW),
        (lambda file: None, case.LOADED),
    ],
)
def test_the_canaries_stir(act: Callable[[Path], Any], outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each forbidden side effect is detected when it happens."""
    monkeypatch.setitem(OPENINGS, "act", act)
    assert run(case.Case("act", "acts", written("{}"), opens="act")).outcome == outcome
