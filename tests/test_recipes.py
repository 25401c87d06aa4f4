"""The recipes run as shown: each converts a model, runs it, and compares with eager."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT

RECIPES = ROOT / "examples" / "recipes"
NEEDS = {"to_executorch": "executorch", "to_tvm": "tvm"}


def test_every_recipe_is_run_and_shown() -> None:
    """A recipe that is not run may be wrong."""
    page = (ROOT / "docs" / "other-runtimes.md").read_text(encoding="utf-8")
    assert {path.stem for path in RECIPES.glob("*.py")} == set(NEEDS)
    for recipe in NEEDS:
        assert f"(../examples/recipes/{recipe}.py)" in page


@pytest.mark.parametrize("recipe", NEEDS)
def test_the_page_shows_lines_of_the_recipe(recipe: str) -> None:
    """Lines that the page shows without running are in the file that is run."""
    page = (ROOT / "docs" / "other-runtimes.md").read_text(encoding="utf-8")
    shown = page.partition(f"{recipe}.py)")[2].partition("```text\n")[2].partition("```")[0]
    held = {line.strip() for line in (RECIPES / f"{recipe}.py").read_text(encoding="utf-8").splitlines()}
    assert [line for line in shown.splitlines() if line.strip() not in held] == []
    assert shown.count("\n") > 3


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "transformer_encoder"])
@pytest.mark.parametrize("recipe", NEEDS)
def test_a_recipe_gives_what_eager_gives(recipe: str, model: str, tmp_path: Path) -> None:
    """In a separate process, as a user runs it."""
    if importlib.util.find_spec(NEEDS[recipe]) is None:
        pytest.skip(f"{NEEDS[recipe]} is not installed; no extra of torch-ir brings it")
    command = [sys.executable, "-W", "ignore", str(RECIPES / f"{recipe}.py"), model]
    file = [str(tmp_path / "model.pte")] if recipe == "to_executorch" else []
    done = subprocess.run([*command, *file], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("equal to the model's")
