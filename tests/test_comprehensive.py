"""Every model of the catalogue: extracted without weights, saved, loaded, drawn, and equal to the original."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import catalogue
from catalogue import Entry
from tests.comprehensive import Result, check, write_report, write_summary


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[list[Result]]:
    """Collect results and, on request, write them after the last model."""
    results: list[Result] = []
    yield results
    if request.config.getoption("generate_reports") and results:
        folder = Path(request.config.getoption("output"))
        for result in results:
            write_report(result, folder)
        write_summary(results, folder)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(request.config.getoption("output")) if request.config.getoption("generate_reports") else tmp_path


@pytest.mark.parametrize("entry", [pytest.param(e, id=f"{e.category}-{e.name}") for e in catalogue.entries()])
def test_model(entry: Entry, folder: Path, reports: list[Result]) -> None:
    result = check(entry, folder)
    reports.append(result)
    assert result.passed, f"{result.failed}: {result.message}"


def test_every_category_has_a_model() -> None:
    assert all(catalogue.categories().values())


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(KeyError, match="unknown model 'resnet81'; did you mean 'resnet18'"):
        catalogue.find("resnet81")
    with pytest.raises(KeyError, match="unknown category 'atention'; did you mean 'attention'"):
        catalogue.find_category("atention")


@pytest.mark.parametrize(("part", "step"), [("build", "build"), ("inputs", "inputs")])
def test_a_failure_is_kept_with_its_step(part: str, step: str, tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("on purpose")

    result = check(replace(catalogue.find("mlp"), **{part: broken}), tmp_path)
    assert (result.passed, result.failed, result.message) == (False, step, "RuntimeError: on purpose")
    write_report(result, tmp_path)
    write_summary([result], tmp_path)
    assert "on purpose" in (tmp_path / "mlp.md").read_text()
    assert f"FAILED ({step})" in (tmp_path / "README.md").read_text()


def test_another_model_does_not_verify(tmp_path: Path) -> None:
    """A real model that computes something else than the one extracted is caught in the last step."""
    mlp = catalogue.find("mlp")

    def build() -> torch.nn.Module:
        model = mlp.build()
        if not model.fc1.weight.is_meta:
            model.relu = torch.nn.Tanh()
        return model

    result = check(replace(mlp, build=build), tmp_path)
    assert result.failed == "verify"
    assert "FAILED" in result.verification


def test_report_shows_the_model(tmp_path: Path) -> None:
    result = check(catalogue.find("mlp"), tmp_path)
    text = write_report(result, tmp_path).read_text()
    assert "| verdict | PASSED |" in text
    assert "| input | x | 1x4 | float32 |" in text
    assert "| aten.linear.default | 2 |" in text
    assert "```mermaid\nflowchart TD" in text


@pytest.mark.usefixtures("_forked_python")
def test_command_line_names_the_nearest_category() -> None:
    command = [sys.executable, "-m", "tests", "--category", "decodr"]
    root = Path(__file__).parent.parent
    run = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (2, "tests: unknown category 'decodr'; did you mean 'decoder'?\n")
