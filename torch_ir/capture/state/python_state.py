"""A snapshot of the Python state that a model can reach, to list and undo the changes of a run.

State is found in attributes and slots of modules, in the containers and objects that these hold, in closures and
defaults of functions, in class attributes, and in members of modules and classes that forward, and the functions that
it calls by name, use. Of an installed library that defines none of the model's classes, only the functions that the
model itself calls or holds are searched, for globals that they assign and for containers. Some state cannot be copied,
such as that of iterators and files: whether a run changed it shows only in what the next run computes.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_ir.capture.program.provenance import is_users_code, is_users_module
from torch_ir.capture.state.held_contents import (
    BUILT_IN,
    PLAIN,
    copy_of,
    fill,
    has_content,
    is_equal,
    is_numbers,
    is_same,
)
from torch_ir.capture.state.reached_code import (
    functions_from,
    functions_of,
    is_foreign,
    methods_of,
    names_in,
    packages_of,
    reached,
    uses_of,
)
from torch_ir.capture.walk import walk, without
from torch_ir.ops.references import ABSENT, CONTAINERS, LRU_CACHE, TABLES, attribute_tables, cells_of, held_by
from torch_ir.ops.torch_internals import MODULE_TABLES, buffer_table, parameter_table

_MOST = 20_000  # objects to visit
_Path = tuple[Any, ...]  # of names and keys, outermost first
Table = tuple[_Path, Any, Any]  # a dict, with a copy
_Held = tuple[_Path, Any, Any]  # a list, set or cell, with its content


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
        return copy_of(self.table) if self.key is ABSENT else self.table.get(self.key, ABSENT)

    def is_still_there(self) -> bool:
        return not is_equal(self.old, self.now())


class Changed(NamedTuple):
    """The parts of a snapshot that a run may have changed: all others are as they were."""

    tables: list[Table]
    contents: list[_Held]
    globals: list[tuple[_Path, Any, Any, Any]]
    namespaces: list[Table]
    classes: list[tuple[type, dict[str, Any]]]
    flags: list[tuple[_Path, Any, str, torch.Tensor, bool]]


class PythonState:
    """The state of a model, and of the code that it runs, when this object was created."""

    def __init__(self, model: nn.Module) -> None:
        self._seen: set[int] = set()
        self._tables: list[Table] = []
        self._empty: list[Any] = []  # empty dicts and sets of modules; most stay empty
        self._contents: list[_Held] = []
        self._globals: list[tuple[_Path, Any, Any, Any]] = []
        self._slots: set[int] = set()  # tables of weights, where assigning a tensor of equal type is not a change
        self.tensors: list[tuple[_Path, torch.Tensor]] = []  # other than weights
        self.caches: list[Any] = []  # functions with `functools.lru_cache`
        self._opaque: list[_Path] = []  # holders of state that cannot be copied
        self._drawing: list[_Path] = []  # names of functions that draw from the generator of `random`
        self.reading: dict[str, None] = {}  # built-in functions that read files or the terminal
        self._namespaces: list[Table] = []  # globals that are read by globals(); the environment
        self._flags: list[tuple[_Path, Any, str, torch.Tensor, bool]] = []  # `requires_grad` of weights in tables
        self._attributes: list[Table] = []  # of weights; most have none
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._kinds: dict[type, None] = {}  # of objects
        self._functions: list[FunctionType] = []  # held by objects; what they call is not seen yet
        self._packages: set[str] = set()  # of the model's classes; functions of other libraries are not followed
        paths: dict[nn.Module, str] = {}
        for path, module in walk(model):
            paths.setdefault(module, path)
        self._seen.update(map(id, paths))
        kinds = dict.fromkeys(map(type, paths))
        self._packages.update(*map(packages_of, kinds))
        for module, path in paths.items():
            self._see_module(module, path)
        names = set[str]()
        for kind in kinds:
            self._see_class(kind)
            functions = functions_of(kind)
            names.update(*(names_in(function.__code__).attributes for function in functions))
            self._see_functions(functions)
        while self._kinds or self._functions:  # seeing one may find others
            while self._functions:
                self._see_functions(functions_from(self._functions.pop()))
            while self._kinds:
                kind = self._kinds.popitem()[0]
                self._see_class(kind)
                for method in methods_of(kind, frozenset(names)):
                    self._see_functions(reached(kind, method) if method.__name__ == "__call__" else [method])
        self._generator = random.getstate() if self._drawing else None

    @property
    def opaque(self) -> list[_Path]:
        """The holders of state that cannot be copied; functions of `random` only once one has drawn a number."""
        return self._opaque + (self._drawing if self._drawing and random.getstate() != self._generator else [])

    def changes(self, changed: Changed | None = None) -> list[Change]:
        """Return the changes, in the order of the search; `changed` is what `changed()` returned, if it is known."""
        changed = changed or self.changed()
        found = []
        for path, table, copy in changed.tables:
            found += _differences(path, table, copy)
        found += [Change(path, held, ABSENT, content) for path, held, content in changed.contents]
        found += [Change(path, table, name, old) for path, table, name, old in changed.globals]
        for path, table, copy in changed.namespaces:
            found += _differences(path, table, copy)
        for kind, copy in changed.classes:
            found += _class_changes(kind, copy)
        for path, table, name, _, old in changed.flags:
            found.append(Change((*path, "requires_grad"), _Flag(table, name), "flag", old))
        return [change for change in found if change.is_still_there() and not self._is_written(change)]

    def _is_written(self, change: Change) -> bool:
        """Whether a change is an assignment to a weight, which the graph writes."""
        return id(change.table) in self._slots and _is_alike(change.old, change.now())

    def changed(self) -> Changed:
        """Compare the snapshot with the present state."""
        tables = [entry for entry in self._tables if not is_same(entry[1], entry[2])]
        tables += [entry for entry in self._attributes if (entry[1] or entry[2]) and not is_same(entry[1], entry[2])]
        contents = [entry for entry in self._contents if not has_content(entry[1], entry[2])]
        for path, holder in self._filled() if any(self._empty) else ():
            if type(holder) is set:
                contents.append((path, holder, set()))
            else:
                tables.append((path, holder, {}))
        return Changed(
            tables,
            contents,
            [entry for entry in self._globals if entry[1].get(entry[2], ABSENT) is not entry[3]],
            [entry for entry in self._namespaces if not is_same(entry[1], entry[2])],
            [entry for entry in self._classes if not is_same(vars(entry[0]), entry[1])],
            [entry for entry in self._flags if not _has_flag(*entry[1:])],
        )

    def _filled(self) -> Iterator[tuple[_Path, Any]]:
        """Yield the dicts and sets of modules that were empty and are not now."""
        filled = {id(holder) for holder in self._empty if holder}
        for where, _, attributes in self._tables:
            for name, holder in attributes.items():
                if id(holder) in filled:
                    filled.discard(id(holder))
                    yield (where if name in _REGISTERED else (*where, name)), holder

    def restore(self, changed: Changed | None = None) -> None:
        changed = changed or self.changed()
        for _, table, copy in changed.tables:
            table.clear()
            table.update(copy)
        for _, held, content in changed.contents:
            fill(held, content)
        for _, table, name, old in changed.globals:
            if old is ABSENT:
                table.pop(name, None)
            else:
                table[name] = old
        for path, table, copy in changed.namespaces:  # one by one, as other threads may read them
            for change in filter(Change.is_still_there, _differences(path, table, copy)):
                if change.old is ABSENT:
                    table.pop(change.key)
                elif change.key is not ABSENT:
                    table[change.key] = change.old
        for kind, copy in changed.classes:
            for change in _class_changes(kind, copy):
                delattr(kind, change.key) if change.old is ABSENT else setattr(kind, change.key, change.old)
        for _, _, _, tensor, flag in changed.flags:
            if tensor.requires_grad is not flag:
                tensor.requires_grad_(flag)

    # -- finding it ---------------------------------------------------------------------------------------------------

    def _see_module(self, module: nn.Module, path: str) -> None:
        attributes = module.__dict__
        where: _Path = (path,) if path else ()
        self._tables.append((where, attributes, attributes.copy()))
        hooks = [*map(attributes.get, _HOOKS)]
        passed = _REGISTERED if any(hooks) else _STANDARD
        if passed is _STANDARD:
            self._empty += hooks
        for name in without((*attributes,), passed):
            value = attributes[name]
            kind = type(value)
            if kind in PLAIN:
                continue
            if (kind in TABLES or kind is set) and not value:
                self._empty.append(value)
            elif kind is tuple and PLAIN.issuperset(map(type, value)):
                continue
            elif not isinstance(value, nn.Module):
                self._see(value, (*where, name))
        for table in map(attributes.get, MODULE_TABLES):
            if not table:
                self._empty.append(table)
            elif type(table) in TABLES:  # those of a scripted module are of another type
                self._tables.append((where, table, table.copy()))
        parameters = parameter_table(module)
        self._slots.update((id(parameters), id(buffer_table(module))))
        if parameters and isinstance(parameters, dict):
            for name, weight in parameters.items():
                if weight is not None:
                    self._see_weight(weight, parameters, (*where, name))

    def _see_weight(self, weight: nn.Parameter, table: dict[str, Any], path: _Path) -> None:
        self._flags.append((path, table, path[-1], weight, weight.requires_grad))
        if type(weight) in _PLAIN_TENSORS:
            attributes = vars(weight)
            self._attributes.append((path, attributes, attributes.copy() if attributes else {}))

    def _see(self, value: Any, path: _Path) -> None:
        kind = type(value)
        if kind in PLAIN or id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen.add(id(value))
        if kind in TABLES:
            self._tables.append((path, value, value.copy()))
        elif kind in CONTAINERS:
            self._contents.append((path, value, value.copy()))
        elif isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            if kind in _PLAIN_TENSORS:
                self._tables.append((path, vars(value), vars(value).copy()))
            return
        elif isinstance(value, Enum):
            return
        elif isinstance(value, BUILT_IN):
            self._contents.append((path, value, copy_of(value)))
            self._tables += [(path, table, dict(table)) for table in attribute_tables(value)]
        elif kind is FunctionType:
            self._see_function(value, path)
            if not is_foreign(value, self._packages):
                self._functions.append(value)
            return
        elif kind is itertools.count:
            self._contents.append((path, value, repr(value)))
        elif kind is MethodType:
            self._see(value.__self__, path)
            self._see(value.__func__, path)
            return
        elif kind is LRU_CACHE:
            self.caches.append(value)
            return
        elif is_numbers(value):
            self._contents.append((path, value, copy_of(value)))
            return
        elif _is_opaque(value):
            self._opaque.append(path)
            return
        elif _is_users_class(kind) or kind.__module__ in _FOLLOWED or isinstance(value, nn.Module):
            tables = list(attribute_tables(value))
            self._tables += [(path, table, dict(table)) for table in tables]
            self._kinds[kind] = None
            if not tables and not isinstance(value, _HOLDERS):
                self._opaque.append(path)
        elif not isinstance(value, _HOLDERS):
            return
        for key, held in held_by(value):
            if type(held) not in PLAIN:
                self._see(held, (*path, _key(key)))

    def _see_functions(self, functions: Iterable[FunctionType]) -> None:
        """See functions without what they call."""
        for function in functions:
            if id(function) not in self._seen:
                self._seen.add(id(function))
                self._see_function(function, ())

    def _see_function(self, function: FunctionType, path: _Path) -> None:
        if not is_users_code(function.__code__):
            return
        for name, cell, content in cells_of(function):
            if id(cell) not in self._seen:
                self._seen.add(id(cell))
                self._contents.append(((name,), cell, content))
        self._tables.append(((*path, function.__name__), function.__dict__, function.__dict__.copy()))
        is_followed = not is_foreign(function, self._packages)
        for name, held in held_by(function):
            if is_followed or type(held) in _CONTENTS:
                self._see(held, (name,))
        self._see_globals(function, is_followed)

    def _see_class(self, kind: type) -> None:
        for base in kind.__mro__ if id(kind) not in self._seen else ():
            if id(base) not in self._seen and _is_users_class(base):
                self._seen.add(id(base))
                self._classes.append((base, dict(vars(base))))
                for name, value in self._classes[-1][1].items():
                    if not name.startswith("__"):
                        is_wrapper = isinstance(value, (staticmethod, classmethod))
                        self._see_member(value.__func__ if is_wrapper else value, (base.__name__, name))

    def _see_globals(self, function: FunctionType, is_followed: bool) -> None:
        table, uses = function.__globals__, uses_of(function)
        self._globals += [((name,), table, name, table.get(name, ABSENT)) for name in uses.stored]
        self._opaque += [(name,) for name in uses.outside]
        self._drawing += [(name,) for name in uses.drawing]
        self.reading.update(dict.fromkeys(uses.reading))
        if uses.has_globals:
            self._see_namespace(table, ())
        if uses.has_environment:
            self._see_namespace(os.environ, ("os", "environ"))
        for name in uses.objects if is_followed else _containers(table):
            self._see_member(table.get(name), (name,))
        for member in uses.members if is_followed else ():
            value = member.value()
            if isinstance(member.owner, type):
                self._see_class(member.owner)
            else:
                self._globals.append((member.path, vars(member.owner), member.name, value))
            self._see_member(value, member.path)

    def _see_namespace(self, table: Any, path: _Path) -> None:
        if id(table) not in self._seen:
            self._seen.add(id(table))
            self._namespaces.append((path, table, dict(table)))

    def _see_member(self, value: Any, path: _Path) -> None:
        """See a member of a module or class; its functions and classes only as far as names in the code lead there."""
        kind = type(value)
        if isinstance(value, _CONTEXTS):
            self._opaque.append(path)
        elif kind not in PLAIN and kind is not FunctionType and not isinstance(value, type):
            self._see(value, path)


def _containers(namespace: dict[str, Any]) -> list[str]:
    """Return the names of the containers and caches in the globals of a module, without those of Python itself."""
    return [name for name, value in list(namespace.items()) if type(value) in _CONTENTS and not name.startswith("__")]


_PLAIN_TENSORS = frozenset((torch.Tensor, nn.Parameter))
_CONTENTS = {*CONTAINERS, LRU_CACHE}
_HOLDERS = (tuple, functools.partial, weakref.ref)
_FOLLOWED = frozenset(("types", "collections", "weakref", "argparse", "queue"))  # of the standard library
_REGISTERED = frozenset(MODULE_TABLES)
_HOOKS = frozenset(name for name, table in vars(nn.Module()).items() if type(table) in TABLES) - _REGISTERED
_STANDARD = _HOOKS | _REGISTERED
_CONTEXTS = (ContextVar, threading.local)


class _Flag:
    """The `requires_grad` flag of the weight that a table has under a name."""

    def __init__(self, table: Any, name: str) -> None:
        self.table, self.name = table, name

    def get(self, name: str = "flag", default: Any = None) -> Any:
        weight = self.table.get(self.name)
        return default if weight is None else weight.requires_grad


def _has_flag(table: Any, name: str, weight: torch.Tensor, flag: bool) -> bool:
    """Whether a weight, and the one that replaces it during capture, have this `requires_grad` flag."""
    return weight.requires_grad is flag and (table.get(name) is weight or _Flag(table, name).get() is flag)


def _differences(path: _Path, table: Any, copy: Any) -> list[Change]:
    keys = dict.fromkeys((*copy, *table))
    if path and len(keys) == len(copy) == len(table) and [*copy] != [*table]:
        return [Change(path, table, ABSENT, copy)]  # their order
    return [Change((*path, _key(key)), table, key, copy.get(key, ABSENT)) for key in keys]


def _class_changes(kind: type, copy: dict[str, Any]) -> list[Change]:
    """Return the attributes of a class that are other objects now; Python itself sets some with double underscores."""
    now = vars(kind)
    if len(now) == len(copy) and all(map(operator.is_, now.values(), copy.values())):
        return []
    found = [Change((kind.__name__, name), now, name, copy.get(name, ABSENT)) for name in dict.fromkeys((*copy, *now))]
    return [change for change in found if change.now() is not change.old and not change.key.startswith("__")]


def _is_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _key(key: Any) -> str:
    return key if isinstance(key, str) and (key.isidentifier() or key.isdigit()) else f"[{key!r:.40}]"


def _is_users_class(kind: type) -> bool:
    return is_users_module(kind.__module__)


def _is_opaque(value: Any) -> bool:
    """Whether a value has state that cannot be copied, or not without code of its class."""
    kind = type(value)
    if kind.__module__.startswith("numpy.random"):
        return True
    return isinstance(value, Iterator) and not hasattr(value, "__dict__")
