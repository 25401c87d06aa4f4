"""`--import`: the user's own operators for a graph file that uses them; the file itself can name no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import failure
from torch_ir import IR, OpNode, TensorMeta
from torch_ir.cli import main
from torch_ir.cli.dispatch import build_parser

OPERATORS = """
import torch


@torch.library.custom_op("imported_by_hand::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph with an operator that a file next to it defines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_operators.py").write_text(OPERATORS)
    x, y = TensorMeta("x", (2, 4), "float32"), TensorMeta("y", (2, 4), "float32")
    IR([OpNode("y", "imported_by_hand.twice.default", [x], [y])], [x], [y]).save("net.json")
    return tmp_path


def test_every_command_takes_it() -> None:
    for name, parser in build_parser().verbs.choices.items():
        assert "--import" in parser._option_string_actions, name


def test_an_operator_of_the_user(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the import, running names the option and `check` does not call the operator valid; then both work."""
    assert "(on the command line: --import MODULE)" in failure(capsys, "run", "net.json", "-w", "random")
    assert main(["check", "net.json"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "no errors, but 1 of 1 node not checked: unknown operators imported_by_hand.twice.default (1)"
    assert second == "import the module that defines them with --import"

    assert "no module named 'own_operatorz'; for a file, write own_operatorz.py" in failure(
        capsys, "run", "net.json", "-w", "random", "--import", "own_operatorz"
    )
    (here / "broken.py").write_text("1 / 0\n")
    assert "running broken.py failed: ZeroDivisionError" in failure(capsys, "info", "net.json", "--import", "broken.py")
    assert "--isolated" in failure(capsys, "run", "net.json", "-w", "random", "--isolated", "--import", "own_operators")

    assert main(["run", "net.json", "-w", "random", "--import", "own_operators.py"]) == 0
    assert capsys.readouterr().out.startswith("y: float32[2, 4]")
    assert main(["check", "net.json"]) == 0
    assert capsys.readouterr().out.startswith("OK: 1 node: operators, arguments and attributes are valid")
