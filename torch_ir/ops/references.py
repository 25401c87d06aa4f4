"""How Python objects hold others: in containers, attributes, closures, defaults, bound methods and partial functions.

Searches of the objects that a model can reach use these functions, and decide which objects to enter.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

# Exactly these types are copied and restored: a subclass may override `copy` or `clear`.
TABLES = (dict, OrderedDict, defaultdict, Counter)
CONTAINERS = frozenset((list, set, deque, *TABLES))
ABSENT = object()  # in place of a value where there is none


def held_by(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each object that another holds, with its key, index or name; a function holds its closure and defaults."""
    if isinstance(value, dict):
        yield from list(dict.items(value))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from enumerate(list(value))
    elif isinstance(value, FunctionType):
        yield from ((name, content) for name, _, content in cells_of(value))
        yield from ((f"a default of {value.__name__}", default) for default in _defaults(value))
    elif isinstance(value, MethodType):
        yield from (("__self__", value.__self__), ("__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from enumerate((value.func, *value.args, *value.keywords.values()))
    if isinstance(attributes := getattr(value, "__dict__", None), dict):
        yield from list(attributes.items())


def cells_of(function: FunctionType) -> Iterator[tuple[str, CellType, Any]]:
    """Yield the variables of a closure that have a value: name, cell and value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        content = content_of(cell)
        if content is not ABSENT:
            yield name, cell, content


def content_of(cell: CellType) -> Any:
    """Return the value of a closure's variable; ABSENT before its first assignment."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def _defaults(function: FunctionType) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
