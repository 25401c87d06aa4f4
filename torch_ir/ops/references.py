"""References of Python objects: in containers, attributes, closures, defaults, bound methods, partial functions.

Searches of the objects that a model can reach use these functions, and decide which objects to enter.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping
from types import CellType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

# Exactly these types are copied and restored: a subclass may override `copy` or `clear`.
TABLES = (dict, OrderedDict, defaultdict, Counter)
CONTAINERS = frozenset((list, set, deque, *TABLES))
LRU_CACHE = type(functools.lru_cache(lambda: None))
ABSENT = object()  # in place of a value where there is none
_WITHOUT_ATTRIBUTES = frozenset((*CONTAINERS, tuple, frozenset))
_PLAIN_KEYS = frozenset((str, int, float, bool, bytes, type(None)))


def held_by(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each object that another holds, with its key, index or name; a function holds its closure and defaults."""
    if type(value) is FunctionType:
        yield from _held_by_function(value)
        return
    if isinstance(value, dict):
        yield from list(dict.items(value))
        yield from (("a key", key) for key in list(value) if type(key) not in _PLAIN_KEYS)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from enumerate(list(value))
    elif isinstance(value, MethodType):
        yield from (("__self__", value.__self__), ("__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from enumerate((value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, weakref.ref):
        yield "its object", value()
    if type(value) in _WITHOUT_ATTRIBUTES:
        return
    for attributes in attribute_tables(value):
        yield from list(attributes.items())


def _held_by_function(function: FunctionType) -> Iterator[tuple[Any, Any]]:
    """Yield the same for a function, of which there are many that hold nothing."""
    if function.__closure__:
        yield from ((name, content) for name, _, content in cells_of(function))
    if function.__defaults__ or function.__kwdefaults__:
        yield from ((f"a default of {function.__name__}", default) for default in _defaults(function))
    if function.__dict__:
        yield from list(function.__dict__.items())


def attribute_tables(value: Any) -> Iterator[MutableMapping[str, Any]]:
    """Yield the `__dict__` of an object, and its slots as a table."""
    if isinstance(attributes := getattr(value, "__dict__", None), dict):
        yield attributes
    if members := _slots_of(type(value)):
        yield Slots(value, members)


class Slots(MutableMapping[str, Any]):
    """The slots of an object that have a value; assigns them even in a frozen data class."""

    def __init__(self, holder: Any, members: Mapping[str, MemberDescriptorType]) -> None:
        self._holder, self._members = holder, members

    def __getitem__(self, name: str) -> Any:
        try:
            return self._members[name].__get__(self._holder)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._members[name].__set__(self._holder, value)

    def __delitem__(self, name: str) -> None:
        self._members[name].__delete__(self._holder)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._members if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_without_slots: weakref.WeakSet[type] = weakref.WeakSet()


def _slots_of(kind: type) -> Mapping[str, MemberDescriptorType]:
    """Return the slots of the Python classes among the bases of a class, those of the class itself last."""
    if kind in _without_slots:
        return {}
    own = [vars(base).items() for base in reversed(kind.__mro__) if "__slots__" in vars(base)]
    found = {name: member for items in own for name, member in items if isinstance(member, MemberDescriptorType)}
    if not found:  # others are not kept: a member refers to its class, which would never be collected
        _without_slots.add(kind)
    return found


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
