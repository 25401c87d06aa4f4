"""Find private names of torch in source code."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

_PATH = re.compile(r"torch(\.\w+)*\._[A-Za-z]\w*(\.\w+)*")
_BY_NAME = ("getattr", "hasattr", "setattr", "delattr", "attrgetter", "intercepted", "set_attribute")
_NAMED_TUPLES = frozenset(("_asdict", "_fields", "_replace", "_make"))  # which Python writes with an underscore


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_own(node: ast.expr) -> bool:
    """Whether an expression is `self`, `cls` or `super()`, whose private attributes are those of the class."""
    if isinstance(node, ast.Call) and not node.args:
        return getattr(node.func, "id", "") == "super"
    return getattr(node, "id", "") in ("self", "cls")


def defined_in(sources: Collection[str]) -> frozenset[str]:
    """Return the private names that these sources define as functions, attributes, fields or slots."""
    found: set[str] = set(_NAMED_TUPLES)
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.update([node.attr] if _is_own(node.value) else [])
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__slots__":
                found.update(ast.literal_eval(node.value))
    return frozenset(filter(is_private, found))


def private_names(source: str, ours: Collection[str], theirs: Collection[str] = ()) -> list[tuple[int, str]]:
    """Return the line and name of everything private of torch that a source names.

    `ours` are private names that torch_ir defines; of these, `theirs` are attributes of torch's objects as well.
    """
    nodes = list(ast.walk(ast.parse(source)))
    homes = dict(_imported(nodes))
    homes.update(
        (str(node.targets[0].id), found)
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if (found := _dotted(node.value, homes)).startswith("torch.ops.")
    )
    found = [*_imports(nodes), *_attributes(nodes, homes, ours, theirs), *_strings(nodes, ours, theirs)]
    return sorted(set(found))


def _imported(nodes: Collection[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield each imported name with its dotted path."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _imports(nodes: Collection[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name) for name in names if _is_private_path(name))  # type: ignore[attr-defined]


def _is_private_path(path: str) -> bool:
    """Whether a dotted path leads through something private of torch; operators have public meanings."""
    first, *rest = path.split(".")
    return first == "torch" and rest[:1] != ["ops"] and any(map(is_private, rest))


def _dotted(node: ast.AST, homes: dict[str, str]) -> str:
    """Return the path of a chain of attributes that begins with an imported name, or nothing."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([homes[node.id], *reversed(parts)]) if isinstance(node, ast.Name) and node.id in homes else ""


def _attributes(
    nodes: Collection[ast.AST], homes: dict[str, str], ours: Collection[str], theirs: Collection[str]
) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        path = _dotted(node, homes)
        if path:
            yield from [(node.lineno, path)] if _is_private_path(path) else []
        elif not _is_own(node.value) and (node.attr not in ours or node.attr in theirs):
            yield node.lineno, node.attr


def _strings(nodes: Collection[ast.AST], ours: Collection[str], theirs: Collection[str]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _PATH.fullmatch(node.value) or node.value in theirs:
                yield node.lineno, node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _BY_NAME:
            for argument in node.args:
                start = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
                word = start.value if isinstance(start, ast.Constant) else None
                if isinstance(word, str) and is_private(word) and word not in ours:
                    yield node.lineno, word


def sources(folder: Path) -> dict[str, str]:
    """Return the text of every Python file below a folder, by its path in there."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.py"))}
