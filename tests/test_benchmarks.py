"""The benchmark scripts start, and what a page says about each architecture is what its script finds."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import architectures as script
from benchmarks import measure
from benchmarks.__main__ import TABLES, main
from tests.architectures import NOT_CAPTURED, NOT_FAST, UNLIKE_EXPORT, Architecture, architectures
from tests.samples import sampled

MODULES = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_every_script_starts(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be imported; one with options prints its help."""
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.__doc__
    if argparse not in vars(module).values():
        return
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_every_table_can_be_made_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` needs no argument, and the page has a table of that name; one that it lacks is refused beforehand."""
    for name, module in TABLES.items():
        assert all(each.default is not each.empty for each in inspect.signature(module.run).parameters.values()), name
    assert [name for name in TABLES if not measure.has_table(name)] == ["peer_optimisers"]  # it has its own file
    monkeypatch.setattr(sys, "argv", ["benchmarks", "peer_optimisers", "--write"])
    with pytest.raises(SystemExit):
        main()


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of the stored outcomes and of both pages, which the script uses."""
    for module, name in ((script, "DATA"), (script, "PAGE"), (measure, "PAGE")):
        path: Path = getattr(module, name)
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(module, name, tmp_path / path.name)
    return tmp_path


@pytest.mark.long
def test_the_script_measures_some_architectures(pages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is recorded, one runs again, one falls back; the rows of others stay as they were."""
    names = ("llama", "whisper", "superpoint")
    before = script.stored()
    assert script.main([*names, "--write"]) == 0
    after = script.stored()
    assert {name for name in after if after[name] != before[name]} <= set(names)
    assert {after[name].measured for name in names} == {date.today().isoformat()}
    llama, whisper, superpoint = (after[name] for name in names)
    assert [llama.verdict, whisper.verdict, superpoint.verdict] == [script.SAME, script.SAME, script.FALLBACK]
    assert [llama.runs_again, whisper.runs_again, superpoint.runs_again] == [False, True, False]
    assert [llama.is_timed, whisper.is_timed, superpoint.is_timed] == [True, True, False]
    assert superpoint.reason == "the size of a result depends on the data"
    written = (pages / script.PAGE.name).read_text(encoding="utf-8")
    assert f"| llama | causal | {' | '.join(llama.cells)} |" in written
    assert f"| whisper | audio | {' | '.join(whisper.cells)} |" in written
    assert script.short(after) in (pages / measure.PAGE.name).read_text(encoding="utf-8")
    assert capsys.readouterr().out.rstrip("\n") == script.summary(after)


def test_the_script_continues(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interruption, only what was not measured since a day is measured; untimed, times are kept."""
    rows: dict[str, Any] = json.loads(script.DATA.read_text())
    for name, row in rows.items():
        row.update(
            measured="2026-11-01" if name == "llama" else "2026-11-02", verdict="same bytes", ours=0.5, theirs=2.0
        )
    del rows["gpt2"]
    script.DATA.write_text(json.dumps(rows))
    asked: list[str] = []
    once = script.outcome_of
    monkeypatch.setattr(script, "outcome_of", lambda each, timed: asked.append(each.name) or once(each, timed))
    before = script.stored()
    script.main(["--before", "2026-11-02", "--untimed", "--write"])
    assert asked == ["llama", "gpt2"]
    after = script.stored()
    assert (after["llama"].ours, after["llama"].theirs) == (before["llama"].ours, before["llama"].theirs)
    assert not after["gpt2"].is_timed


def test_times_of_another_way_to_capture_are_dropped() -> None:
    timed = script.Outcome(script.SAME, theirs=2.0, ours=0.5, on="2 cores")
    assert script.Outcome(script.SAME).with_times_of(timed).ratio == 4
    assert not script.Outcome(script.SAME, runs_again=True).with_times_of(timed).is_timed
    assert not script.Outcome(script.FALLBACK).with_times_of(timed).is_timed
    assert not script.Outcome(script.SAME).with_times_of(None).is_timed


def test_the_pages_are_those_of_the_stored_outcomes() -> None:
    """`python -m benchmarks.architectures --before 2000-01-01 --write` writes them without measuring anything."""
    outcomes = script.stored()
    assert list(outcomes) == [each.name for each in architectures()]
    assert script.PAGE.read_text(encoding="utf-8") == script.page(outcomes)
    table = f"<!-- architectures -->\n{script.short(outcomes)}\n<!-- end architectures -->"
    assert table in measure.PAGE.read_text(encoding="utf-8")


def test_the_stored_outcomes_are_those_of_other_tests() -> None:
    """The same architectures fall back or are refused, and no graph differs."""
    outcomes = script.stored()
    of = {verdict: {name for name, each in outcomes.items() if each.verdict == verdict} for verdict in script.VERDICTS}
    assert of[script.DIFFERENT] == set()
    assert of[script.REFUSED] == set(NOT_CAPTURED)
    assert of[script.FALLBACK] == NOT_FAST.keys() - NOT_CAPTURED.keys()
    assert of[script.UNLIKE] == UNLIKE_EXPORT.keys()


@pytest.mark.filterwarnings("ignore::torch_ir.errors.CaptureWarning")  # values are lost on meta, state is not kept
@pytest.mark.parametrize("architecture", sampled(architectures(), 6, lambda each: each.name))
def test_a_stored_outcome_is_up_to_date(architecture: Architecture) -> None:
    """An architecture that begins to fall back, or to run again, or stops to, has to be measured again."""
    found, stored = script.outcome_of(architecture, False), script.stored()[architecture.name]
    assert (found.verdict, found.reason, found.runs_again) == (stored.verdict, stored.reason, stored.runs_again)
