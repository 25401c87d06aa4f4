"""Pages, the README and examples use public names only: those that the API pages list."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_ir
from tests.documents import ROOT, pages, read_blocks
from tests.test_doors import NAMES

API = ROOT / "docs" / "api"
# These two are about the inside of the package.
INTERNAL = {ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"}
USERS = [*(page for page in pages() if page not in INTERNAL), *sorted((ROOT / "examples").glob("*.py"))]
_LISTED = re.compile(r"^::: (torch_ir\.[\w.]+)$", re.MULTILINE)
_ROW = re.compile(r"^\| `(torch_ir\.[\w.]+)` \| (`.+`) \|$", re.MULTILINE)
_OF_EVERY_MODULE = {"torch_ir.__version__", "torch_ir.__all__", "torch_ir.__doc__", "torch_ir.__file__"}


def public_names() -> set[str]:
    """Return the full names that the API pages list."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(API.glob("*.md")))
    doors = {f"{module}.{name}" for module, names in _ROW.findall(text) for name in re.findall(r"`(\w+)`", names)}
    return doors | set(_LISTED.findall(text)) | _OF_EVERY_MODULE


PUBLIC = public_names()
_MODULES = {".".join(name.split(".")[:end]) for name in PUBLIC for end in range(1, name.count(".") + 1)}


def used_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield every name of torch_ir that a program imports, or reads as an attribute of a module, with its line."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}  # what a name of the program stands for
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                root = alias.name.split(".")[0]
                modules[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            first, *rest = ast.unparse(node).split(".")
            if first in modules and all(map(str.isidentifier, rest)):
                yield node.lineno, ".".join([modules[first], *rest])


def is_public(name: str) -> bool:
    """Whether a name is listed, belongs to something listed, or is a module that holds something listed."""
    parts = name.split(".")
    prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return parts[0] != "torch_ir" or name in _MODULES or not prefixes.isdisjoint(PUBLIC)


def programs(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the programs of a page, or the script itself, with the line before the first."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield 0, text
        return
    for block in read_blocks(path.name, text.splitlines()):
        if block.language == "python":
            yield block.line - 1, "\n".join(block.lines)


def test_only_public_names_are_used() -> None:
    found = [
        (f"{path.relative_to(ROOT)}:{start + line}: {name}", name)
        for path in USERS
        for start, source in programs(path)
        for line, name in used_names(source)
    ]
    wrong = [place for place, name in found if not is_public(name)]
    assert not wrong, f"not on a page of docs/api: {wrong}"


def test_every_listed_name_exists() -> None:
    for name in PUBLIC:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_public_name_is_listed() -> None:
    assert {f"torch_ir.{name}" for name in torch_ir.__all__} <= PUBLIC


def test_the_documented_modules_are_listed_with_their_names() -> None:
    rows = {module: set(re.findall(r"`(\w+)`", names)) for module, names in _ROW.findall(_modules_page())}
    assert {module: rows[f"torch_ir.{module}"] for module in NAMES} == NAMES
    assert set(rows) == {*(f"torch_ir.{module}" for module in NAMES), "torch_ir.ops", "torch_ir.ops.registry"}


def _modules_page() -> str:
    return (API / "modules.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import torch_ir\ntorch_ir.IR.load('a')", []),
        ("from torch_ir import IR, optimize", []),
        ("import torch.nn\nfrom json import loads", []),
        ("import torch_ir.errors\ntorch_ir.errors.RuleError", []),
        ("import torch_ir\ntorch_ir.__version__", []),
        ("from torch_ir.ir.graph.graph import IR", ["torch_ir.ir.graph.graph.IR"]),
        ("import torch_ir.passes.pipeline", ["torch_ir.passes.pipeline"]),
        ("def f():\n    from torch_ir.analysis import cost", ["torch_ir.analysis.cost"]),
        ("import torch_ir\ntorch_ir.passes.pipeline.optimize(1)", ["torch_ir.passes.pipeline.optimize"]),
        ("import torch_ir.passes as p\np.pipeline.optimize(1)", ["torch_ir.passes.pipeline.optimize"]),
        ("from torch_ir import nothing", ["torch_ir.nothing"]),
    ],
)
def test_what_is_not_public_is_found(source: str, wrong: list[str]) -> None:
    assert [name for _, name in used_names(source) if not is_public(name)] == wrong
