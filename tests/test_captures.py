"""Captured graphs are the stored ones, with the same warnings and results, and a capture makes as many Python calls.

`python -m tests.captures check --against REV` shows what a change changed, and `accept` stores it.
"""

import json
import os
import random
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

from tests.captures.families import FAMILIES
from tests.captures.rows import Case, captured, digest, first_line, normalised
from tests.captures.stored import FOLDER, as_text, changes, load, unpinned
from tests.captures.sweep import compared, first_difference, matches, selected, texts_at
from tests.proof import module
from torch_ir import IR, CaptureWarning, extract_ir

pinned = pytest.mark.skipif(unpinned() != "", reason=f"stored with the versions in constraints.txt; here: {unpinned()}")


GRAPHS = [family for family in FAMILIES if family != "python_calls"]


def changed(family: str, cases: list[Case]) -> dict[str, dict[str, str]]:
    return {each.name: each.changed for each in compared(family, cases) if each.changed}


@pinned
@pytest.mark.parametrize("family", GRAPHS)
def test_a_sample_is_as_stored(family: str) -> None:
    cases = FAMILIES[family].cases()
    assert changed(family, random.Random(0).sample(cases, FAMILIES[family].sample)) == {}


@pinned
@pytest.mark.slow
@pytest.mark.parametrize("family", GRAPHS)
def test_every_capture_is_as_stored(family: str) -> None:
    assert changed(family, FAMILIES[family].cases()) == {}


@pinned
@pytest.mark.usefixtures("_forked_python")
@pytest.mark.parametrize("pattern", ["python_calls/[mrs]*", pytest.param("python_calls", marks=pytest.mark.slow)])
def test_a_capture_makes_as_many_python_calls(pattern: str) -> None:
    """In another process: pytest captures what torch logs, and a capture searches what this process holds."""
    done = subprocess.run([sys.executable, "-m", "tests.captures", "check", pattern], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, []), done.stdout + done.stderr


@pinned
@pytest.mark.slow
def test_hashes_change_nothing() -> None:
    command = [sys.executable, "-m", "tests.captures", "check", "[ac]*/*e*"]
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "1"}, check=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_there_is_a_row_for_each_case(family: str) -> None:
    rows = load(family)
    names = [case.name for case in FAMILIES[family].cases()]
    assert sorted(names) == list(rows)
    assert (FOLDER / f"{family}.json").read_text() == as_text(rows)


def model(factor: float) -> nn.Module:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu() * factor

    with torch.device("meta"):
        return module(forward, layer=nn.Linear(2, 2))


def graph(factor: float) -> IR:
    return extract_ir(model(factor), (torch.empty(1, 2, device="meta"),))


def test_a_row_describes_a_capture() -> None:
    """Digest, size and strategy; warnings; a refusal in one line."""

    def capture() -> IR:
        warnings.warn("first\nsecond", CaptureWarning, stacklevel=2)
        return graph(2.0)

    row, texts = captured(Case("model", capture, lambda ir, warned: f"{ir.nodes[0].name}, {warned}"))
    assert row == {
        "digest": digest(texts["graph"]),
        "nodes": 3,
        "by": "fast recording",
        "warnings": ["first"],
        "result": "linear, ['first']",
    }
    refused, _ = captured(Case("model", lambda: extract_ir(model(2.0), (torch.empty(1, 2),))))
    assert refused["refused"].startswith("ExportError: Example inputs must be on meta device")


def test_the_text_does_not_depend_on_the_machine() -> None:
    """Neither torch's version nor the number of a line of a test file is in it."""
    first, other = graph(2.0), graph(2.0)
    other.pytorch_version = "2.13.0+cu130"
    assert normalised(first) == normalised(other)
    assert "tests/test_captures.py: return self.layer(x).relu() * factor" in normalised(first)
    assert first_line("at tests/a.py:12, <object at 0x7f001122>\nmore") == "at tests/a.py, <object at 0x>"


def test_the_first_difference_names_the_node() -> None:
    one, other = (json.loads(normalised(graph(factor))) for factor in (2.0, 3.0))
    assert first_difference(one, one) == ""
    assert first_difference(one, other) == "nodes[2] mul = aten.mul.Tensor.attrs.other: 2.0 -> 3.0"
    del other["nodes"][2]
    assert first_difference(one, other).startswith('nodes[2] mul = aten.mul.Tensor: {"name": "mul", ')


def test_changes_of_a_row() -> None:
    """The number of calls has a tolerance; the reason of the last change is not compared."""
    row = {"digest": "0", "by": "fast recording", "reason": "why"}
    assert changes(row, {"digest": "0", "by": "fast recording"}) == {}
    assert changes(row, {"digest": "1", "by": "recording"}, ["by"]) == {"digest": "0 -> 1"}
    assert changes({"digest": "0"}, {"refused": "no"}) == {"digest": "0 -> None", "refused": "None -> no"}
    assert (changes(None, row), changes(row, None)) == ({"case": "new"}, {"case": "gone"})
    assert changes({"calls": 1000}, {"calls": 1010}) == {}
    assert changes({"calls": 1000}, {"calls": 1011}) == {"calls": "1000 -> 1011"}


def test_patterns_choose_cases() -> None:
    assert [case.name for _, cases in selected("catalogue/mlp (*") for case in cases] == [
        "mlp (eval)", "mlp (train)", "mlp (recorded)",
    ]  # fmt: skip
    assert matches("training", "training", "mlp")
    assert matches("ml?", "training", "mlp")
    assert not matches("architectures", "training", "mlp")


@pytest.mark.slow
def test_graphs_of_another_revision() -> None:
    """The graphs of the current commit, captured in a separate work tree."""
    found = texts_at("HEAD", ["catalogue/mlp (eval)"])
    (family, cases), *_ = selected("catalogue/mlp (eval)")
    assert found == {f"{family}/{cases[0].name}": captured(cases[0]).texts}
