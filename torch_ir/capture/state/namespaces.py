"""The state that a model's code can reach and write to, remembered: globals, classes, closures, objects, containers."""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from torch_ir.capture.program.provenance import is_users
from torch_ir.capture.walk import own_attributes

_DEPTH = 3  # of what is reached from the model's classes and objects
_MOST_ITEMS = 4096  # of a container that is copied
_LRU = type(functools.lru_cache(lambda: None))
_PLAIN = frozenset((bool, int, float, complex, str, bytes, tuple, frozenset, type(None), torch.dtype, torch.device))
_ATOMS = _PLAIN - {tuple, frozenset}
_ABSENT = object()
# These very types: those of a library may run code of theirs when they are copied.
_CONTAINERS = frozenset((dict, list, set, deque, OrderedDict, defaultdict))


class Namespaces:
    """What was in every namespace and container that the classes and objects of a model lead to."""

    def __init__(self, modules: Collection[nn.Module]) -> None:
        self._held: dict[int, tuple[Any, Any]] = {}  # with a copy; a class stands for its dict
        self._depths: dict[int, int] = {}  # to which what it holds was followed
        self._owners: dict[int, type] = {}
        self._caches: dict[Any, None] = {}
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        for kind in dict.fromkeys(map(type, modules)):
            for base in kind.__mro__[:-1]:
                self._add(base, _DEPTH)
        seen: set[int] = set()  # layers share much, such as their configuration
        for module in modules:
            for _, value in own_attributes(module):
                if type(value) not in _PLAIN and id(value) not in seen:
                    seen.add(id(value))
                    self._add(value, _DEPTH - 1)

    def has(self, holder: Any) -> bool:
        """Whether something was there before."""
        return id(holder) in self._held

    def content(self, holder: Any) -> Any:
        """What a namespace or container held; None if that is not known."""
        return self._held.get(id(holder), (None, None))[1]

    def owner(self, holder: Any) -> type | None:
        """The class that a dict is the namespace of."""
        return self._owners.get(id(holder))

    def put_back(self, stale: Collection[int]) -> None:
        """Undo what was changed since, where the new value is, or holds, one of some objects by identity."""
        for holder, content in list(self._held.values()):
            if isinstance(holder, dict):
                for name, value in list(holder.items()):
                    if content.get(name, _ABSENT) is not value and _holds(value, stale):
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
        """Give an entry the value that it had, or remove it."""
        content, owner = self.content(holder) or {}, self.owner(holder)
        if owner is not None and name in content:
            setattr(owner, name, content[name])  # not in its dict: Python remembers what it looked up there
        elif owner is not None:
            delattr(owner, name)
        elif name in content:
            holder[name] = content[name]
        else:
            del holder[name]

    def put_back_cell(self, cell: types.CellType) -> bool:
        """Give a variable of a closure the value that it had; False if that is not known."""
        if id(cell) not in self._cells:
            return False
        cell.cell_contents = self._cells[id(cell)][1]
        return True

    def _add(self, value: Any, depth: int) -> None:
        if type(value) in _PLAIN or (depth <= 0 and type(value) not in _CONTAINERS):
            return
        if isinstance(value, (types.FunctionType, _LRU)):
            self._add_function(value, depth)
        elif isinstance(value, type):
            self._add_class(value, depth)
        elif isinstance(value, types.ModuleType):
            self._add_dict(vars(value), depth)
        elif type(value) in _CONTAINERS:
            self._add_container(value, depth)
        elif isinstance(value, types.MethodType):
            self._add(value.__self__, depth)
        elif isinstance(value, (staticmethod, classmethod, functools.partial)):
            self._add(getattr(value, "__func__", None) or getattr(value, "func", None), depth)
        elif not isinstance(value, (torch.Tensor, nn.Module)) and hasattr(value, "__dict__"):
            self._add_object(value, depth)

    def _add_class(self, kind: type, depth: int) -> None:
        if not is_users_module(kind.__module__):
            return
        namespace = gc.get_referents(vars(kind))[0]
        self._owners[id(namespace)] = kind
        self._add_dict(namespace, depth, is_checked=True)
        self._add_dict(vars(sys.modules[kind.__module__]), depth - 1)

    def _add_function(self, function: Any, depth: int) -> None:
        if isinstance(function, _LRU):
            self._caches[function] = None
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or self._depths.get(id(function), -1) >= depth:
            return
        self._depths[id(function)] = depth
        self._add_dict(function.__globals__, depth - 1)
        if function.__dict__:
            self._add_container(function.__dict__, depth)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(default, depth - 1)
        for cell, value in _contents(function.__closure__ or ()):
            self._cells.setdefault(id(cell), (cell, value))
            self._add(value, depth)

    def _add_object(self, value: Any, depth: int) -> None:
        if is_users_module(type(value).__module__):
            self._add_container(vars(value), depth)
            self._add_class(type(value), depth - 1)

    def _add_dict(self, namespace: dict[str, Any], depth: int, is_checked: bool = False) -> None:
        """The globals of a module, or the namespace of a class."""
        if depth >= 0 and (is_checked or is_users_module(namespace.get("__name__", ""))):
            self._add_container(namespace, depth)

    def _add_container(self, container: Any, depth: int) -> None:
        if len(container) > _MOST_ITEMS or self._depths.get(id(container), -1) >= depth:
            return
        self._depths[id(container)] = depth
        self._held.setdefault(id(container), (container, container.copy()))
        items = list(container.values()) if isinstance(container, dict) else list(container)
        if depth > 1:
            for item in items:
                if type(item) not in _PLAIN:
                    self._add(item, depth - 1)
        elif depth == 1:  # the last step, which most of what is met lies beyond
            for item in items:
                if type(item) in _CONTAINERS:
                    self._add_container(item, 0)


def is_users_module(name: str) -> bool:
    """Whether a module is neither torch's nor ours nor of the standard library."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_users(file) if file else name == "__main__" and name in sys.modules


def _holds(value: Any, wanted: Collection[int], depth: int = 6) -> bool:
    """Whether a value is one of some objects, or a container or plain object with one."""
    if id(value) in wanted:
        return True
    if not depth or type(value) in _ATOMS:
        return False
    if isinstance(value, dict):
        return any(_holds(item, wanted, depth - 1) for pair in dict.items(value) for item in pair)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return any(_holds(item, wanted, depth - 1) for item in value)
    if isinstance(value, (type, types.ModuleType, types.FunctionType, torch.Tensor, nn.Module)):
        return False
    return any(_holds(item, wanted, depth - 1) for item in getattr(value, "__dict__", {}).values())


def _contents(cells: Collection[types.CellType]) -> Iterator[tuple[types.CellType, Any]]:
    for cell in cells:
        try:
            yield cell, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
