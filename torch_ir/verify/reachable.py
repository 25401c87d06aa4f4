"""All objects that a run of a model may change: attributes, containers, closures, generators, tensors."""

from __future__ import annotations

import functools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

# Objects of these packages are not searched: models do not keep state in them.
_FOREIGN = frozenset((*sys.stdlib_module_names, "torch", "numpy"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
_TABLES = (dict, OrderedDict, defaultdict, Counter)  # exactly these types: subclasses may override `clear`


class Reachable:
    """The objects reachable from a model through attributes, containers, closures and bound methods, each once."""

    def __init__(self, root: Any) -> None:
        self.tables: list[dict[Any, Any]] = []  # dicts, and the attributes of modules and other objects
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
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self._pending += vars(value).values()  # the parts of a subclass, and user attributes
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, (dict, list, deque, set, tuple, frozenset)):
            self._visit_container(value)
        elif isinstance(value, (FunctionType, MethodType, functools.partial)):
            self._visit_callable(value)
        elif isinstance(value, nn.Module) or _root(type(value)) not in _FOREIGN:
            self._visit_object(value)

    def _visit_container(self, value: Any) -> None:
        if type(value) in _TABLES:
            self.tables.append(value)
        elif type(value) in (list, deque):
            self.sequences.append(value)
        elif type(value) is set:
            self.sets.append(value)
        self._pending += value.values() if isinstance(value, dict) else value

    def _visit_callable(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            filled = [cell for cell in value.__closure__ or () if _is_filled(cell)]
            self.cells += filled
            self._pending += [cell.cell_contents for cell in filled]
            self._pending += [value.__defaults__, value.__kwdefaults__, vars(value)]
        elif isinstance(value, MethodType):
            self._pending += [value.__self__, value.__func__]
        else:
            self._pending += [value.func, value.args, value.keywords]

    def _visit_object(self, value: Any) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._pending.append(attributes)
        kind = type(value)
        if id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            own = [parent for parent in kind.__mro__ if _root(parent) not in _FOREIGN]
            self.classes += own
            held = [value for parent in own for value in vars(parent).values()]
            self._pending += [value for value in held if isinstance(value, (dict, list, deque, set, torch.Tensor))]


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that is not assigned yet
        return False


def distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return each tensor object once."""
    return list({id(tensor): tensor for tensor in tensors}.values())
