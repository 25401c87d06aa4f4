"""A snapshot of the Python state that a model can reach, to list and undo the changes of a run.

State is found in attributes of modules, in the containers and objects that these hold, in closures and defaults of
functions, in class attributes, and in globals that forward, and the functions that it calls by name, use. Some state
cannot be copied, such as that of iterators: whether a run changed it shows only in what the next run computes.
"""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import random
import sys
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from torch_ir.capture.program.provenance import is_users, is_users_module
from torch_ir.capture.walk import walk
from torch_ir.ops.references import ABSENT, CONTAINERS, TABLES, cells_of, content_of, held_by
from torch_ir.ops.torch_internals import MODULE_TABLES, buffer_table, parameter_table

_PLAIN = frozenset(
    (
        *(int, float, complex, bool, str, bytes, type(None), type(Ellipsis), slice, range, frozenset),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, ModuleType, BuiltinFunctionType),
    )
)
_MOST = 20_000  # objects to visit
_MOST_BYTES = 1 << 20  # of an array that is copied
_Path = tuple[Any, ...]  # of names and keys, outermost first
Table = tuple[_Path, Any, Any]  # a dict, with a copy


def written(path: _Path) -> str:
    """Return a path as Python syntax, without `self`."""
    first, *others = path
    return str(first) + "".join(part if part.startswith("[") else f".{part}" for part in map(str, others))


@dataclass
class Change:
    """A change that a run made: the table, the key in it, and the old value."""

    path: _Path
    table: Any
    key: Any
    old: Any

    @property
    def name(self) -> str:
        return written(self.path)

    def now(self) -> Any:
        """Return the present value; for a list, set or cell, its whole content."""
        return _content(self.table) if self.key is ABSENT else self.table.get(self.key, ABSENT)

    def is_still_there(self) -> bool:
        return not _is_equal(self.old, self.now())


class PythonState:
    """The state of a model, and of the code that it runs, when this object was created."""

    def __init__(self, model: nn.Module) -> None:
        self._seen: set[int] = set()
        self._tables: list[Table] = []
        self._empty: list[Any] = []  # empty dicts of modules; most stay empty
        self._contents: list[tuple[_Path, Any, Any]] = []  # lists, sets and cells, with their content
        self._globals: list[tuple[_Path, Any, Any, Any]] = []
        self._slots: set[int] = set()  # tables of weights, where assigning a tensor of equal type is not a change
        self.tensors: list[tuple[_Path, torch.Tensor]] = []  # other than weights
        self.opaque: list[_Path] = []  # holders of state that cannot be copied
        self._namespaces: list[tuple[Any, Any]] = []  # of functions that call globals()
        self._flags: list[tuple[_Path, _Flag, torch.Tensor, bool]] = []
        classes: dict[type, None] = {}
        paths: dict[nn.Module, str] = {}
        for path, module in walk(model):
            paths.setdefault(module, path)
        for module, path in paths.items():
            self._see_module(module, path)
            classes[type(module)] = None
        for kind in classes:
            self._see_class(kind)

    def changes(self, tables: Sequence[Table] | None = None) -> list[Change]:
        """Return the changes, in the order of the search; `tables` are those that changed, if known."""
        found = []
        for path, table, copy in self.changed_tables() if tables is None else tables:
            found += _differences(path, table, copy)
        found += [Change(path, held, ABSENT, content) for path, held, content in self._contents]
        found += [Change(path, table, name, old) for path, table, name, old in self._globals]
        for table, copy in self._namespaces:
            found += [change for change in _differences((), table, copy) if change.now() is not change.old]
        found += [
            Change((*path, "requires_grad"), flag, "flag", old)
            for path, flag, _, old in self._flags
            if flag.get("flag") is not old
        ]
        return [change for change in found if change.is_still_there() and not self._is_written(change)]

    def _is_written(self, change: Change) -> bool:
        """Whether a change is an assignment to a weight, which the graph writes."""
        return id(change.table) in self._slots and _is_alike(change.old, change.now())

    def changed_tables(self) -> list[Table]:
        """Return the dicts that changed, with their paths and the copies made before."""
        changed = [entry for entry in self._tables if not _is_same(*entry[1:])]
        if any(self._empty):
            filled = {id(table) for table in self._empty if table}
            for where, _, attributes in self._tables:
                for name, table in attributes.items():
                    if id(table) in filled:
                        filled.discard(id(table))
                        changed.append((where if name in _REGISTERED else (*where, name), table, {}))
        return changed

    def restore(self, tables: Sequence[Table] | None = None) -> None:
        for _, table, copy in self.changed_tables() if tables is None else tables:
            table.clear()
            table.update(copy)
        for _, held, content in self._contents:
            if not _is_equal(content, _content(held)):
                _fill(held, content)
        for _, table, name, old in self._globals:
            if old is ABSENT:
                table.pop(name, None)
            elif table.get(name, ABSENT) is not old:
                table[name] = old
        for table, copy in self._namespaces:  # one by one, as other threads may read them
            for change in _differences((), table, copy):
                if change.old is ABSENT:
                    table.pop(change.key)
                elif change.now() is not change.old:
                    table[change.key] = change.old
        for _, _, tensor, flag in self._flags:
            if tensor.requires_grad is not flag:
                tensor.requires_grad_(flag)

    # -- finding it ---------------------------------------------------------------------------------------------------

    def _see_module(self, module: nn.Module, path: str) -> None:
        attributes = module.__dict__
        where: _Path = (path,) if path else ()
        self._seen.add(id(module))
        self._tables.append((where, attributes, attributes.copy()))
        for name, value in attributes.items():
            if type(value) in _PLAIN:
                continue
            if type(value) in TABLES and not value:
                self._empty.append(value)
            elif isinstance(value, torch.Tensor):
                self.tensors.append(((*where, name), value))
            elif name in _REGISTERED and type(value) in TABLES:  # those of a scripted module are of another type
                self._tables.append((where, value, value.copy()))
            elif not isinstance(value, nn.Module):
                self._see(value, (*where, name))
        self._slots.update((id(parameter_table(module)), id(buffer_table(module))))
        for name, weight in parameter_table(module).items():
            if weight is not None and isinstance(parameter_table(module), dict):
                self._flags.append(((*where, name), _Flag(parameter_table(module), name), weight, weight.requires_grad))

    def _see(self, value: Any, path: _Path) -> None:
        kind = type(value)
        if kind in _PLAIN or id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            return
        if kind in TABLES:
            self._tables.append((path, value, value.copy()))
        elif kind in CONTAINERS:
            self._contents.append((path, value, value.copy()))
        elif kind is FunctionType:
            self._see_function(value, path)
            return
        elif kind is itertools.count:
            self._contents.append((path, value, repr(value)))
        elif kind is MethodType:
            self._see(value.__self__, path)
            self._see(value.__func__, path)
            return
        elif _is_numbers(value):
            self._contents.append((path, value, _content(value)))
            return
        elif _is_opaque(value):
            self.opaque.append(path)
            return
        elif _is_users_class(kind) and isinstance(getattr(value, "__dict__", None), dict):
            self._tables.append((path, value.__dict__, value.__dict__.copy()))
        elif kind is not tuple and kind is not functools.partial:
            return
        for key, held in held_by(value):
            if type(held) not in _PLAIN:
                self._see(held, (*path, _key(key)))

    def _see_function(self, function: FunctionType, path: _Path) -> None:
        if not is_users(function.__code__.co_filename):
            return
        for name, cell, content in cells_of(function):
            if type(content) in _PLAIN and id(cell) not in self._seen:
                self._seen.add(id(cell))
                self._contents.append(((name,), cell, content))
        self._tables.append(((*path, function.__name__), function.__dict__, function.__dict__.copy()))
        for name, held in held_by(function):
            self._see(held, (name,))
        self._see_globals(function)

    def _see_class(self, kind: type) -> None:
        for base in filter(_is_users_class, kind.__mro__):
            for name, value in vars(base).items():
                if isinstance(value, _SIMPLE) and not name.startswith("__"):
                    self._globals.append(((base.__name__, name), _ClassTable(base), name, value))
                elif type(value) in CONTAINERS and not name.startswith("__"):
                    self._see(value, (base.__name__, name))
        for function in functions_of(kind):
            self._see_function(function, ())

    def _see_globals(self, function: FunctionType) -> None:
        table = function.__globals__
        stored, loaded = _global_names(function.__code__)
        self._globals += [((name,), table, name, table.get(name, ABSENT)) for name in stored]
        if "globals" in loaded and all(table is not known for known, _ in self._namespaces):
            self._namespaces.append((table, table.copy()))
        for name in loaded:
            value = table.get(name)
            if isinstance(value, _CONTEXTS) or getattr(value, "__name__", None) in _DRAWING:
                self.opaque.append((name,))
            elif type(value) in CONTAINERS or (_is_users_class(type(value)) and not isinstance(value, nn.Module)):
                self._see(value, (name,))


_REGISTERED = frozenset(MODULE_TABLES)
_BUILT_IN = (list, dict, set, deque, bytearray, array)  # other types than the known containers: subclasses of these
_CONTEXTS = (ContextVar, threading.local)
_DRAWING = frozenset(("random", "time", "secrets", "uuid", "datetime"))  # modules that return something else each time
_SIMPLE = (bool, int, float, str, type(None))


class _ClassTable:
    """The attributes of a class, which are assigned with setattr."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def get(self, name: str, default: Any = None) -> Any:
        return vars(self.kind).get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.kind, name, value)


class _Flag:
    """The `requires_grad` flag of a weight."""

    def __init__(self, table: Any, name: str) -> None:
        self.table, self.name = table, name

    def get(self, name: str, default: Any = None) -> Any:
        weight = self.table.get(self.name)
        return default if weight is None else weight.requires_grad


def _differences(path: _Path, table: Any, copy: Any) -> list[Change]:
    keys = dict.fromkeys((*copy, *table))
    return [Change((*path, _key(key)), table, key, copy.get(key, ABSENT)) for key in keys]


def _is_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _key(key: Any) -> str:
    return key if isinstance(key, str) and (key.isidentifier() or key.isdigit()) else f"[{key!r:.40}]"


def _content(held: Any) -> Any:
    if isinstance(held, CellType):
        return content_of(held)
    if isinstance(held, random.Random):
        return held.getstate()
    if _is_numbers(held):
        return held.tobytes()
    return repr(held) if isinstance(held, itertools.count) else held.copy()


def _is_numbers(value: Any) -> bool:
    """Whether a value is a generator of random numbers or a small array of numpy, whose state can be copied."""
    numpy = sys.modules.get("numpy")
    is_array = numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"
    return isinstance(value, random.Random) or (is_array and value.nbytes <= _MOST_BYTES)


def _fill(held: Any, content: Any) -> None:
    if isinstance(held, CellType):
        held.cell_contents = content
    elif isinstance(held, random.Random):
        held.setstate(content)
    elif _is_numbers(held):
        held[...] = sys.modules["numpy"].frombuffer(content, held.dtype).reshape(held.shape)
    elif not isinstance(held, itertools.count):  # a counter cannot be reset
        held.clear()
        held.update(content) if isinstance(held, set) else held.extend(content)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two tables have the same keys in the same order, and identical values."""
    return [*one] == [*other] and all(map(operator.is_, one.values(), other.values()))


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are identical, equal plain values, or containers of such, which torch copies."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in (list, tuple, deque):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if type(one) in TABLES:
        return [*one] == [*other] and all(map(_is_equal, one.values(), other.values()))
    if type(one) is set:
        return {*map(id, one)} == {*map(id, other)}
    return type(one) in _PLAIN and bool(one == other)


def _is_users_class(kind: type) -> bool:
    return is_users_module(kind.__module__)


def _is_opaque(value: Any) -> bool:
    """Whether a value has state that cannot be copied, or not without code of its class."""
    kind = type(value)
    if isinstance(value, _BUILT_IN) or kind.__module__.startswith("numpy.random"):
        return True
    return isinstance(value, Iterator) and not hasattr(value, "__dict__")


_known_functions: WeakKeyDictionary[type, Sequence[FunctionType]] = WeakKeyDictionary()


def functions_of(kind: type) -> Sequence[FunctionType]:
    """Return `forward` of a user's class, and the user's functions that it calls by name, directly or indirectly."""
    found = _known_functions.get(kind)
    if found is None:
        found = _known_functions[kind] = tuple(_reached(kind))
    return found


def _reached(kind: type) -> list[FunctionType]:
    start = getattr(kind, "forward", None)
    waiting = [start] if isinstance(start, FunctionType) else []
    found: dict[CodeType, FunctionType] = {}
    while waiting and len(found) < 200:
        function = waiting.pop()
        code = function.__code__
        if code in found or not is_users(code.co_filename):
            continue
        found[code] = function
        for name in _names(code):
            value = getattr(kind, name, None) or function.__globals__.get(name)
            if isinstance(value, property):
                value = value.fget
            if isinstance(value, FunctionType):
                waiting.append(value)
    return list(found.values())


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function and in its nested functions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


@functools.lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the globals that a function assigns, and those that it reads."""
    stored: dict[str, None] = {}
    loaded: dict[str, None] = {}
    for inner in (code, *(const for const in code.co_consts if isinstance(const, CodeType))):
        for instruction in dis.get_instructions(inner):
            if instruction.opname == "STORE_GLOBAL":
                stored[instruction.argval] = None
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                loaded[instruction.argval] = None
    return tuple(stored), tuple(loaded)
