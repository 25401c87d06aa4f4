"""Sweeps: every model has a row, whatever it does; written rows are never repeated or lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.command_line import ROOT, command
from tests.swept import ENDS, ends, entry, journal
from torch_ir import IR
from torch_ir.cli.models.opening import open_entry
from torch_ir.sweep import Allowance, Entry, Plan, find_engine, sweep

PLAN = Plan(open_entry, limits=Allowance(seconds=300.0, memory=1 << 30))
SHORT = Plan(open_entry, limits=Allowance(seconds=4.0, memory=1 << 30))  # for a model that takes any time
_PATIENCE = 300.0  # seconds


@pytest.mark.usefixtures("_forked_python")
def test_every_end_is_one_row(tmp_path: Path) -> None:
    """A model that raises, aborts, segfaults, exits, hangs, grows or differs affects no other, and its row says why.

    Nor does it matter that somebody kills a process that starts the others.
    """
    hanging, *others = ENDS
    entries = [*(entry(end) for end in others), Entry("lost", error="line 9: the quotes do not match")]

    def kill_a_mother(row, done: int, total: int) -> None:
        if done == 2:
            os.kill(_mothers(os.getpid())[0], signal.SIGKILL)

    rows = sweep(entries, tmp_path, PLAN, lambda: find_engine("local", 2), watch=kill_a_mother)
    rows = [*sweep([entry(hanging)], tmp_path, SHORT, lambda: find_engine("local", 1)), *rows]
    assert ends(rows[:-1]) == ENDS
    told = {row.model.partition("end=")[2]: row.diagnosis for row in rows}
    assert told["fine"] == ""
    assert "does not like its input" in told["raises"]
    assert told["differs"] == "output: 16 of 16 elements are too far off"
    assert "SIGABRT in `extract`" in told["aborts"]
    assert "SIGSEGV in `extract`" in told["segfaults"]
    assert "status 3" in told["exits"]
    assert "more than 4 s in `extract` at" in told["hangs"]
    assert (rows[-1].status, rows[-1].step, rows[-1].diagnosis) == ("refused", "read", entries[-1].error)
    _check_fine(rows[1], tmp_path)
    keys = [entry(hanging).key, *(each.key for each in entries)]
    assert sorted(row["key"] for row in journal(tmp_path)) == sorted(keys)


def _check_fine(row, folder: Path) -> None:
    """A row has the results of every step, and the graph is stored under its digest."""
    assert (row.step, row.nodes, row.parameters, row.flops, row.max_diff) == ("verify", 4, 76, 2 * 2 * 64, 0.0)
    assert row.nodes_after == 3  # a product with 1 is gone
    assert row.peak_bytes > 0
    assert row.seconds > row.extract_seconds > 0
    path = folder / "graphs" / f"{row.digest}.json"
    assert path.stat().st_size == row.graph_bytes
    assert len(IR.load(path).nodes) == row.nodes


@pytest.mark.usefixtures("default_signals")
def test_nothing_is_lost_and_nothing_is_done_twice(tmp_path: Path, programs: Path | None) -> None:
    """Interrupted, then killed, then left alone: one row for each model, and no process outlives the sweep."""
    models = tmp_path / "models.txt"
    models.write_text("".join(f"{entry(pause=0.2, width=width).model} -i 2x8\n" for width in range(1, 7)))
    for end, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        running = _start(models, tmp_path / "out", more=1)
        mothers = _mothers(running.pid)
        os.kill(running.pid, end)
        assert running.wait(_PATIENCE) == status
        assert len(mothers) == 1
        _until(lambda mother=mothers[0]: not _is_alive(mother))
    whole = journal(tmp_path / "out")
    with open(tmp_path / "out" / "rows.jsonl", "a") as file:
        file.write('{"model": "cut of')  # as a kill may leave it
    done = command("sweep", str(models), "-o", str(tmp_path / "out"), "--workers", "1", "--json", programs=programs)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 6
    assert json.loads(done.stdout)["done_now"] == 6 - len(whole)
    rows = journal(tmp_path / "out")
    assert rows[: len(whole)] == whole
    assert Counter(row["key"] for row in rows).most_common(1)[0][1] == 1
    assert len(rows) == 6


@pytest.mark.usefixtures("default_signals")
def test_in_the_background_it_ignores_interrupts_and_can_be_terminated(tmp_path: Path) -> None:
    """Started as by `nohup torch-ir sweep ... &`: neither Ctrl-C nor a hangup ends it, SIGTERM does, without a word."""
    models = tmp_path / "models.txt"
    models.write_text("".join(f"{entry(pause=0.2, width=width).model} -i 2x8\n" for width in range(1, 9)))
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    running = _start(models, tmp_path / "out", more=1, stderr=subprocess.PIPE)
    (mother,) = _mothers(running.pid)
    before = len(journal(tmp_path / "out"))
    for process in (mother, running.pid):
        os.kill(process, signal.SIGINT)
        os.kill(process, signal.SIGHUP)
    _until(lambda: len(journal(tmp_path / "out")) > before)
    running.terminate()
    _, told = running.communicate(timeout=_PATIENCE)
    assert (running.returncode, told) == (128 + signal.SIGTERM, b"")
    _until(lambda: not _is_alive(mother))


def _start(models: Path, folder: Path, more: int, **options: Any) -> subprocess.Popen[bytes]:
    """A sweep that is running and has written so many rows more."""
    words = ["sweep", str(models), "-o", str(folder), "--workers", "1"]
    before = len(journal(folder))
    process = subprocess.Popen([sys.executable, "-m", "torch_ir", *words], cwd=ROOT, **options)
    _until(lambda: len(journal(folder)) >= before + more)
    assert process.poll() is None
    return process


def _until(is_so, seconds: float = _PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def _mothers(parent: int) -> list[int]:
    """Return the fork servers of a sweep, by their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_mother = b"torch_ir.sweep.fork_server" in (path / "cmdline").read_bytes()
            facts = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if is_mother and int(facts[1]) == parent:
            found.append(int(path.name))
    return found


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def _environment() -> Iterator[None]:
    """Dask and Ray set variables such as OMP_NUM_THREADS in this process, which others would inherit."""
    with patch.dict(os.environ):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_every_end_is_one_row_on_a_cluster(engine: str, package: str, tmp_path: Path) -> None:
    """A crash, a hang or too much memory ends a model, not its worker."""
    pytest.importorskip(package, reason=f"{engine} is not installed")
    plan = Plan(open_entry, limits=Allowance(seconds=60.0, memory=1 << 30))
    rows = sweep([entry(end) for end in ENDS], tmp_path, plan, lambda: find_engine(engine, 2))
    assert ends(rows) == ENDS
    assert len(journal(tmp_path)) == len(ENDS)


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize("engine", ["dask", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_loses_nothing(engine: str, tmp_path: Path) -> None:
    """On a cluster of two processes, one is killed at work; its models are run by the other."""
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[engine], reason=f"{engine} is not installed")
    entries = [entry(pause=0.3, width=width) for width in range(1, 7)] + [entry("segfaults")]
    killed: list[int] = []

    def kill_its_worker(row, done: int, total: int) -> None:
        if not killed and row.status == "ok":
            killed.append(int(row.worker.rpartition(":")[2]))
            os.kill(killed[0], signal.SIGKILL)

    rows = sweep(entries, tmp_path, PLAN, lambda: find_engine(engine, 2), watch=kill_its_worker)
    assert killed
    assert killed[0] != os.getpid()
    assert [row.status for row in rows] == [*["ok"] * 6, "crashed"]
    assert len({row.worker for row in rows}) > 1
    assert len(journal(tmp_path)) == len(entries)
