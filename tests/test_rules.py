"""Every error about a file names one of the rules of the format, wherever it is raised."""

import ast
from collections.abc import Iterator
from pathlib import Path

import torch_ir
from torch_ir.ir.checks.format_rules import RULES

PACKAGE = Path(torch_ir.__file__).parent
ERRORS = {"GraphError", "SerializationError"}
# These errors concern a program's use of a graph, not a file.
EDITING = {*PACKAGE.glob("ir/regroup/*.py"), PACKAGE / "ir/sizes/specialize.py", PACKAGE / "ir/graph/edits.py"}
READERS = sorted(
    {*PACKAGE.rglob("ir/**/*.py"), *PACKAGE.glob("formats/*.py"), PACKAGE / "targets" / "contract.py"} - EDITING
)


def errors_made(path: Path) -> Iterator[ast.Call]:
    """The calls in a file that construct an error by its class."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            yield node


def rules_in(call: ast.Call) -> set[str] | None:
    """The rules that a call may name; None where it names none."""
    for keyword in call.keywords:
        if keyword.arg == "rule":
            texts = [node.value for node in ast.walk(keyword.value) if isinstance(node, ast.Constant)]
            return {text for text in texts if isinstance(text, str)}
    return None


def test_the_rules_are_those_of_the_format() -> None:
    """Twenty rules, in order, each with a sentence."""
    assert list(RULES) == [f"R{number}" for number in range(1, 21)]
    assert all(title.endswith(".") for title in RULES.values())


def test_every_error_names_a_rule() -> None:
    """An error of a reader, a writer or check() has the number of an existing rule."""
    named = [(f"{path}:{call.lineno}", rules_in(call)) for path in READERS for call in errors_made(path)]
    assert [(place, rules) for place, rules in named if rules is None or not rules <= RULES.keys()] == []


def test_the_errors_are_found() -> None:
    """The test above examines the right calls."""
    assert sum(1 for path in READERS for _ in errors_made(path)) > 100
