"""All objects that a run of a model may change: attributes, containers, closures, generators, tensors."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, MutableMapping
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from torch_ir.ops.references import TABLES, attribute_tables, cells_of, held_by

# Objects of these packages are not searched: models do not keep state in them.
_FOREIGN = frozenset((*sys.stdlib_module_names, "torch", "numpy"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
_HOLDERS = (dict, list, deque, set, tuple, frozenset, MethodType, functools.partial)


class Reachable:
    """The objects reachable from a model through attributes, containers, closures and bound methods, each once."""

    def __init__(self, root: Any) -> None:
        # dicts, and the attributes and slots of modules and other objects
        self.tables: list[MutableMapping[Any, Any]] = []
        self.sequences: list[list[Any] | deque[Any]] = []
        self.sets: list[set[Any]] = []
        self.cells: list[CellType] = []
        self.classes: list[type] = []
        self.generators: list[torch.Generator] = []
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, Any] = {}
        self._pending: list[Any] = [root]
        while self._pending:
            self._visit(self._pending.pop())

    def _visit(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        kind = type(value)
        if kind in TABLES:
            self.tables.append(value)
        elif kind in (list, deque):
            self.sequences.append(value)
        elif kind is set:
            self.sets.append(value)
        elif isinstance(value, torch.Tensor):  # it holds the parts of a subclass, and user attributes
            self.tensors.append(value)
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, FunctionType):
            self.cells += [cell for _, cell, _ in cells_of(value)]
            self._pending.append(vars(value))
        elif isinstance(value, nn.Module) or _root(kind) not in _FOREIGN:
            self._visit_object(value)
        elif not isinstance(value, _HOLDERS):
            return
        self._pending += [held for _, held in held_by(value)]

    def _visit_object(self, value: Any) -> None:
        for attributes in attribute_tables(value):
            self._pending.append(attributes) if isinstance(attributes, dict) else self.tables.append(attributes)
        kind = type(value)
        if id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            own = [parent for parent in kind.__mro__ if _root(parent) not in _FOREIGN]
            self.classes += own
            held = [value for parent in own for value in vars(parent).values()]
            self._pending += [value for value in held if isinstance(value, (dict, list, deque, set, torch.Tensor))]


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return each tensor object once."""
    return list({id(tensor): tensor for tensor in tensors}.values())
