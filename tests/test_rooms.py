"""Architecture rules: imports between folders, modules that must not import torch, file sizes.

A model flows capture -> IR -> (analysis, passes) -> run, formats, targets, draw, and no room reaches back.
"""

import ast
import functools
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import torch_ir

HOUSE = Path(torch_ir.__file__).parent
ROOMS = {
    "errors": set(),
    "escaping": set(),
    "processes": set(),
    "ir": {"errors"},
    "rewrite": {"errors", "ir"},
    "formats": {"errors", "ir"},
    "draw": {"errors", "escaping", "ir", "processes"},
    "ops": {"errors", "ir"},
    "explorer": {"errors", "ir", "draw", "analysis"},
    "capture": {"errors", "ir", "ops", "processes"},
    "analysis": {"errors", "escaping", "ir", "ops", "processes"},
    "safety": {"errors", "ir", "ops", "analysis", "formats"},
    "run": {"errors", "ir", "ops", "processes", "analysis"},
    "targets": {"errors", "escaping", "ir", "ops", "rewrite", "analysis", "formats", "passes", "run", "safety"},
    "verify": {"errors", "ir", "ops", "run"},
    "sharding": {"errors", "ir", "ops", "processes", "analysis", "run", "verify"},
    "pipeline": {"errors", "ir", "ops", "analysis", "run", "verify", "sharding"},
    "planning": {"errors", "ir", "ops", "analysis", "sharding", "pipeline"},
    "calibration": {"errors", "ir", "ops", "analysis", "capture", "run"},
    "golden": {"errors", "ir", "ops", "run", "verify"},
    "entries": {"errors", "ir", "ops", "capture", "run"},
    "llm": {"errors", "ir", "ops", "rewrite", "capture", "entries", "analysis", "run", "backends"},
    "passes": {"errors", "ir", "ops", "rewrite", "analysis", "run"},
    "quantization": {"errors", "ir", "formats", "ops", "rewrite", "analysis", "passes", "run"},
    "backends": {"errors", "escaping", "ir", "ops", "rewrite", "analysis", "passes", "run", "targets"},
    "training": {"errors", "ir", "ops", "capture", "analysis"},
    "simulators": {"errors", "escaping", "ir", "analysis", "formats", "pipeline"},
    "sweep": {"errors", "ir", "ops", "processes", "capture", "analysis", "passes", "run", "verify", "explorer"},
}
# A notebook calls a method of the graph, which imports the drawing code lazily; a function that is given a model for a
# graph captures it; an ONNX file is run by a back end before it is written.
WAYS_UP = {
    ("ir/graph/graph.py", "torch_ir.draw.notebook"),
    ("ir/graph/given_graph.py", "torch_ir.capture"),
    ("targets/write_onnx.py", "torch_ir.backends.onnx_check"),
}
DOORS = {
    "__init__", "__main__", "_version", "analyzer", "converter", "executor", "exporter", "serializer", "verifier",
    "visualize", "weight_loader",
}  # fmt: skip
NEVER_TORCH = {"errors", "escaping", "processes", "ir", "rewrite", "formats", "draw", "explorer"}
LATE_TORCH = {"cli", "targets", "__init__", "__main__", "_version"}
LATE_FOLDERS = {"mlir", "onnx", "python", "stablehlo", "torch"}  # of targets: a function imports them when it is called
MAX_LINES = 450
MAX_FILES = 30


@dataclass(frozen=True)
class Import:
    """One imported module, and whether importing the file imports it."""

    module: str
    line: int
    at_once: bool


@functools.cache
def imports_of(path: Path) -> list[Import]:
    return list(_imports(ast.parse(path.read_text()), True))


def _imports(node: ast.AST, at_once: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_once) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: imports are written in full"
            # `from torch_ir import errors` imports the module itself, `from torch_ir.ir import IR` its parent
            names = [f"{child.module}.{alias.name}" for alias in child.names] if child.module == "torch_ir" else []
            yield from (Import(name, child.lineno, at_once) for name in names or [child.module or ""])
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):  # expressions import nothing
            later = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) or (
                isinstance(child, ast.If) and "TYPE_CHECKING" in _names(child.test)
            )
            yield from _imports(child, at_once and not later)


def _names(expression: ast.expr) -> set[str]:
    nodes = list(ast.walk(expression))
    return {getattr(node, "id", "") for node in nodes} | {getattr(node, "attr", "") for node in nodes}


def room_of(path: Path) -> str:
    """The folder under torch_ir/, or the name of a top-level file."""
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return sorted(HOUSE.rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(HOUSE).as_posix()


def test_imports_are_found_wherever_they_hide() -> None:
    """In functions, classes, branches and `try`; imports for type checkers or in calls are not immediate."""
    source = """
import torch.nn as nn, json
from torch_ir import errors
if TYPE_CHECKING:
    from torch_ir.ir import IR
class A:
    import torch_ir.ops
    def f(self):
        try:
            from torch_ir.cli.dispatch import main
        except ImportError:
            pass
"""
    assert [(found.module, found.at_once) for found in _imports(ast.parse(source), True)] == [
        ("torch.nn", True),
        ("json", True),
        ("torch_ir.errors", True),
        ("torch_ir.ir", False),
        ("torch_ir.ops", True),
        ("torch_ir.cli.dispatch", False),
    ]


def test_every_file_is_in_a_room_or_is_a_door() -> None:
    """A new room needs a row in the table; a new file at the top is not a room."""
    assert [named(path) for path in files() if room_of(path) not in {*ROOMS, *DOORS, "cli"}] == []


def test_a_room_imports_only_what_its_row_allows() -> None:
    """Top-level and nested imports alike: an import inside a function is still a dependency."""
    wrong = []
    for path in files():
        room = room_of(path)
        for found in imports_of(path) if room in ROOMS else ():
            top, _, rest = found.module.partition(".")
            is_way_up = (named(path), found.module) in WAYS_UP and not found.at_once
            allowed = {room, "_version", *ROOMS[room]}
            if top == "torch_ir" and (rest.split(".")[0] or "torch_ir") not in allowed and not is_way_up:
                wrong.append(f"{named(path)}:{found.line}: {found.module}")
    assert wrong == []


def test_nobody_imports_the_command_line() -> None:
    """Only `python -m torch_ir` does."""
    others = [path for path in files() if room_of(path) not in ("cli", "__main__")]
    assert [
        f"{named(path)}:{found.line}"
        for path in others
        for found in imports_of(path)
        if found.module.startswith("torch_ir.cli")
    ] == []


def test_one_room_starts_processes() -> None:
    """So that signals, limits, the end with the parent and the words for a crash are the same for every child."""
    starts = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "popen", "Popen"}
    wrong = []
    for path in files():
        if room_of(path) != "processes":
            wrong += [f"{named(path)}:{found.line}" for found in imports_of(path) if found.module == "subprocess"]
            nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
            wrong += [f"{named(path)}:{node.lineno}" for node in nodes if node.attr in starts]
    assert wrong == []


def test_torch_stays_out_where_it_must() -> None:
    """Reading, rewriting, encoding and drawing need no torch; the command line imports it when a verb needs it."""
    wrong = []
    for path in files():
        torch = [found for found in imports_of(path) if found.module.split(".")[0] == "torch"]
        if room_of(path) in NEVER_TORCH:
            wrong += [f"{named(path)}:{found.line}" for found in torch]
        if room_of(path) in LATE_TORCH and not LATE_FOLDERS.intersection(path.relative_to(HOUSE).parts):
            late = [found for found in imports_of(path) if set(found.module.split(".")[2:-1]) & LATE_FOLDERS]
            wrong += [f"{named(path)}:{found.line}" for found in (*torch, *late) if found.at_once]
    assert wrong == []


def test_the_graph_needs_nothing_but_the_standard_library() -> None:
    """The room that everything rests on depends on nothing that could be missing."""
    known = sys.stdlib_module_names | {"torch_ir"}
    assert [
        f"{named(path)}:{found.line}: {found.module}"
        for path in sorted((HOUSE / "ir").rglob("*.py"))
        for found in imports_of(path)
        if found.module.split(".")[0] not in known
    ] == []


def test_no_file_is_too_long() -> None:
    """A file that does not fit has two subjects."""
    lengths = {path: len(path.read_text().splitlines()) for path in (*files(), *Path(__file__).parent.rglob("*.py"))}
    assert {str(path): length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_every_file_has_a_name_of_its_own() -> None:
    """So that a name leads to one file; doors have the names of the founding documents."""
    names = Counter(path.stem for path in files() if path.parent != HOUSE and path.stem != "__init__")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_is_hidden_by_a_name_of_its_package() -> None:
    """`from torch_ir.draw import render` is unambiguous, whatever was imported before."""
    hidden = {named(path): _hidden(path) for path in files() if path.stem == "__init__"}
    assert {path: names for path, names in hidden.items() if names} == {}


def _hidden(path: Path) -> set[str]:
    """The modules beside an `__init__.py` that one of its own names hides."""
    beside = {found.stem for found in path.parent.glob("*.py")} | {
        found.parent.name for found in path.parent.glob("*/*.py")
    }
    tree = ast.parse(path.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    home = ".".join(("torch_ir", *path.parent.relative_to(HOUSE).parts))
    names = {alias.asname or alias.name for node in imports if node.module != home for alias in node.names}
    return names & beside


def test_no_folder_is_crowded() -> None:
    """A folder that does not fit needs sub-folders."""
    counts = Counter(path.parent for path in files())
    assert {named(folder): count for folder, count in counts.items() if count > MAX_FILES} == {}


def test_the_light_half_does_not_import_torch() -> None:
    """`import torch` takes seconds; reading or drawing a graph must not need it."""
    programs = [
        "import torch_ir",
        "torch_ir.IR, torch_ir.OpNode, torch_ir.TensorMeta, torch_ir.Limits",
        "torch_ir.save_ir, torch_ir.GraphError",
        "torch_ir.ir_to_mermaid, torch_ir.render",
        "torch_ir.explore",
        "import torch_ir.cli",
        "import torch_ir.sweep",
    ]
    code = "import sys\n" + "".join(f"{program}\nprint('torch' in sys.modules)\n" for program in programs)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert dict(zip(programs, done.stdout.split(), strict=True)) == dict.fromkeys(programs, "False")


def test_every_public_name_resolves() -> None:
    """Every name in `__all__` exists, and `dir()` shows exactly those."""
    assert [name for name in torch_ir.__all__ if not hasattr(torch_ir, name)] == []
    assert dir(torch_ir) == sorted(torch_ir.__all__)


def test_the_table_of_names_is_the_list_of_names() -> None:
    """Each public name has one home module, which defines it."""
    homes = [(room, name) for room, names in torch_ir._ROOMS.items() for name in names]
    assert sorted([*(name for _, name in homes), "__version__"]) == sorted(torch_ir.__all__)
    for room, name in homes:
        assert getattr(importlib.import_module(f"torch_ir.{room}"), name) is getattr(torch_ir, name)


def test_the_names_for_type_checkers_are_the_same() -> None:
    """The imports under TYPE_CHECKING, which editors read, name the same things in the same rooms."""
    tree = ast.parse((HOUSE / "__init__.py").read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    found = {
        statement.module: {alias.name for alias in statement.names}
        for block in blocks
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
    }
    assert found == {f"torch_ir.{room}": set(names) for room, names in torch_ir._ROOMS.items()}


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module, so that `hasattr` and `from ... import` behave."""
    assert not hasattr(torch_ir, "nothing")
    with pytest.raises(ImportError):
        from torch_ir import nothing  # noqa: F401


def test_the_error_of_a_name_in_another_module_says_which() -> None:
    """As `torch_ir.extract_llm`, which is in `torch_ir.llm`; every listed name is there, and only there."""
    for room, names in torch_ir._ELSEWHERE.items():
        module = importlib.import_module(f"torch_ir.{room}")
        for name in names:
            assert name in module.__all__
            with pytest.raises(AttributeError, match=rf"no attribute '{name}'; import it from torch_ir\.{room}$"):
                getattr(torch_ir, name)
