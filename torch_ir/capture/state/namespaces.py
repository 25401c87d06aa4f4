"""A snapshot of the namespaces and containers that a model's code can write to: globals, classes, closures, objects."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
import types
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from torch_ir.capture.program.provenance import is_users_module
from torch_ir.capture.walk import own_attributes
from torch_ir.ops.references import ABSENT, CONTAINERS, LRU_CACHE, cells_of, held_by

_DEPTH = 3  # references to follow from the model's classes and objects
_MOST_ITEMS = 4096  # of a container that is copied
_PLAIN = frozenset((bool, int, float, complex, str, bytes, tuple, frozenset, type(None), torch.dtype, torch.device))
_ATOMS = _PLAIN - {tuple, frozenset}


class Namespaces:
    """The content of each namespace and container that is reachable from the classes and objects of a model."""

    def __init__(self, modules: Collection[nn.Module]) -> None:
        self._held: dict[int, tuple[Any, Any]] = {}  # holder and a copy of its content, by identity
        self._owners: dict[int, type] = {}
        self._caches: dict[Any, None] = {}
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        # objects to enter, by the number of references to follow from them: the largest first, so that each is entered
        # once; the last are containers, whose content is copied and not entered
        self._waiting: list[list[Any]] = [[] for _ in range(_DEPTH + 1)]
        self._entered: set[int] = set()
        for kind in dict.fromkeys(map(type, modules)):
            self._waiting[_DEPTH] += kind.__mro__[:-1]
        for module in modules:
            self._waiting[_DEPTH - 1] += [value for _, value in own_attributes(module) if type(value) not in _PLAIN]
        for depth in range(_DEPTH, -1, -1):
            waiting = self._waiting[depth]
            while waiting:
                value = waiting.pop()
                if id(value) not in self._entered:
                    self._entered.add(id(value))
                    self._enter(value, depth)

    def has(self, holder: Any) -> bool:
        """Whether an object is part of the snapshot."""
        return id(holder) in self._held

    def content(self, holder: Any) -> Any:
        """Return the former content of a namespace or container; None if it is not in the snapshot."""
        return self._held.get(id(holder), (None, None))[1]

    def owner(self, holder: Any) -> type | None:
        """Return the class whose namespace a dict is."""
        return self._owners.get(id(holder))

    def put_back(self, stale: Collection[int]) -> None:
        """Undo changes whose new value is, or holds, one of these objects (identities)."""
        for holder, content in list(self._held.values()):
            if isinstance(holder, dict):
                for name, value in list(holder.items()):
                    if content.get(name, ABSENT) is not value and _holds(value, stale):
                        self.put_back_entry(holder, name)
            elif any(_holds(item, stale) for item in list(holder)):
                holder.clear()
                (holder.update if isinstance(holder, set) else holder.extend)(content)
        for cell, value in self._cells.values():
            if cell.cell_contents is not value and _holds(cell.cell_contents, stale):
                cell.cell_contents = value
        for cache in self._caches:
            if any(_holds(item, stale) for item in gc.get_referents(cache)):
                cache.cache_clear()

    def put_back_entry(self, holder: dict[Any, Any], name: Any) -> None:
        """Restore the former value of an entry, or remove it."""
        content, owner = self.content(holder) or {}, self.owner(holder)
        if owner is not None and name in content:
            setattr(owner, name, content[name])  # not through its dict: Python caches attribute lookups
        elif owner is not None:
            delattr(owner, name)
        elif name in content:
            holder[name] = content[name]
        else:
            del holder[name]

    def put_back_cell(self, cell: types.CellType) -> bool:
        """Restore the former value of a closure's variable; False if it is not in the snapshot."""
        if id(cell) not in self._cells:
            return False
        cell.cell_contents = self._cells[id(cell)][1]
        return True

    def _enter(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in CONTAINERS:
            self._enter_container(value, depth)
        elif isinstance(value, type):
            self._enter_class(value, depth)
        elif isinstance(value, (types.FunctionType, LRU_CACHE)):
            self._enter_function(value, depth)
        elif isinstance(value, types.ModuleType):
            self._add_globals(vars(value), depth)
        elif isinstance(value, types.MethodType):
            self._waiting[depth].append(value.__self__)
        elif isinstance(value, (staticmethod, classmethod, functools.partial)):
            self._waiting[depth].append(getattr(value, "__func__", None) or getattr(value, "func", None))
        elif is_users_module(kind.__module__) and not isinstance(value, (torch.Tensor, nn.Module)):
            self._enter_object(value, depth)

    def _enter_object(self, value: Any, depth: int) -> None:
        if hasattr(value, "__dict__"):
            self._waiting[depth].append(vars(value))
            self._waiting[depth - 1].append(type(value))

    def _enter_class(self, kind: type, depth: int) -> None:
        if is_users_module(kind.__module__):
            namespace = gc.get_referents(vars(kind))[0]
            self._owners[id(namespace)] = kind
            self._waiting[depth].append(namespace)
            if depth:
                self._add_globals(vars(sys.modules[kind.__module__]), depth - 1)

    def _enter_function(self, function: Any, depth: int) -> None:
        if isinstance(function, LRU_CACHE):
            self._caches[function] = None
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType):
            return
        self._add_globals(function.__globals__, depth - 1)
        if function.__dict__:
            self._waiting[depth].append(function.__dict__)
        if function.__closure__:
            for _, cell, value in cells_of(function):
                self._cells.setdefault(id(cell), (cell, value))
        self._waiting[depth] += [value for _, value in held_by(function) if type(value) not in _PLAIN]

    def _add_globals(self, namespace: dict[str, Any], depth: int) -> None:
        if id(namespace) not in self._entered and is_users_module(namespace.get("__name__", "")):
            self._waiting[depth].append(namespace)

    def _enter_container(self, container: Any, depth: int) -> None:
        if len(container) > _MOST_ITEMS:
            return
        self._held[id(container)] = (container, container.copy())
        if depth:
            items = list(container.values() if isinstance(container, dict) else container)
            kinds = map(type, items)  # tested in C: there are thousands
            if depth == 1:  # the last step, which most objects lie beyond
                is_next = map(CONTAINERS.__contains__, kinds)
            else:
                is_next = map(operator.not_, map(_PLAIN.__contains__, kinds))
            self._waiting[depth - 1] += itertools.compress(items, is_next)


def _holds(value: Any, wanted: Collection[int], depth: int = 6) -> bool:
    """Whether a value is one of these objects (identities), or a container or plain object that holds one."""
    if id(value) in wanted:
        return True
    if not depth or type(value) in _ATOMS:
        return False
    if isinstance(value, (type, types.ModuleType, types.FunctionType, torch.Tensor, nn.Module)):
        return False
    return any(_holds(item, wanted, depth - 1) for pair in held_by(value) for item in pair)  # keys hold tensors, too
