"""Lines of code to show beside nodes: of the model's source, and of generated Python."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from torch_ir.ir import IR

_LONGEST = 300  # characters of a line
_MOST_BYTES = 4 << 20  # of a source file
_PARTS = 64  # of the path of a source file
_DIGITS = 9  # of the number of a line
_ASSIGNED = re.compile(r"\s+(\w+(?:, \w+)*) = ")


def source_lines(ir: IR, folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the lines of Python files below a folder that nodes came from, by `file:line` as nodes name them.

    A graph may be untrusted: nothing outside the folder is read, and nothing but Python.
    """
    root = Path(folder).resolve(strict=True)
    below = cache(partial(_below, root))
    wanted: dict[Path, dict[str, int]] = {}
    for source in _sources(ir):
        name, _, number = source.rpartition(":")
        if not number.isdecimal() or len(number) > _DIGITS:
            continue
        if (path := below(name)) is not None:
            wanted.setdefault(path, {})[source] = int(number)
    found: dict[str, str] = {}
    for path, numbers in wanted.items():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found |= {source: lines[at - 1].strip()[:_LONGEST] for source, at in numbers.items() if 0 < at <= len(lines)}
    return found


def python_lines(code: str) -> dict[str, str]:
    """Return the statements of generated Python by the names that they assign; the main graph comes last there."""
    found = {}
    for line in code.splitlines():
        if match := _ASSIGNED.match(line):
            found.update(dict.fromkeys(match[1].split(", "), line.strip()[:_LONGEST]))
    return found


def _sources(ir: IR) -> Iterator[str]:
    yield from dict.fromkeys(node.origin.source for node in ir.nodes if node.origin.source)


def _below(root: Path, name: str) -> Path | None:
    """Return a Python file below a folder; a source may be relative to it, or end in a path below it."""
    parts = [part for part in Path(name).parts if part not in ("/", "\\")]
    if not name.endswith(".py") or len(parts) > _PARTS:
        return None
    for start in range(len(parts)):
        path = root.joinpath(*parts[start:])
        if not os.path.isfile(path):  # False for names that no file can have, too
            continue
        path = path.resolve()
        if path.suffix == ".py" and path.is_relative_to(root) and path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path
    return None
