"""Modules that are alike: of the same class and configuration all the way down, but for numbers such as their index."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping
from functools import cached_property
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_ir.capture.fast.shape_tensors import form_of
from torch_ir.capture.walk import modules, walk
from torch_ir.ops.torch_internals import MODULE_TABLES, buffer_table, module_table, parameter_table

_LEAST = 4  # layers that are alike: two are needed for a proof, and one at the end
IMMUTABLE = frozenset((str, bool, int, float, complex, bytes, torch.dtype, torch.device, torch.Size, type, type(None)))
_HOOKS = frozenset(name for name in vars(nn.Module()) if "hooks" in name)
_TENSORS, _CHILDREN = MODULE_TABLES[:2], MODULE_TABLES[2]
TABLES = frozenset(MODULE_TABLES)


Slot = tuple[
    tuple[str, str, str], MutableMapping[str, Any], str
]  # a weight of a layer: its place, table and name there


class Group(NamedTuple):
    """Layers that are alike, in order, and the attributes with numbers that differ: path below the layer, and name."""

    layers: tuple[nn.Module, ...]
    varying: tuple[tuple[str, str], ...]


class Layer:
    """A layer with the modules inside of it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.inside = walk(module)

    @cached_property
    def weights(self) -> list[Slot]:
        return [
            (("weight", path, name), table, name)
            for path, module in self.inside
            for table in (parameter_table(module), buffer_table(module))
            for name, tensor in table.items()
            if tensor is not None
        ]

    def is_plain(self) -> bool:
        """Whether nothing is hooked to it."""
        return not any(module.__dict__[name] for _, module in self.inside for name in _HOOKS)

    def is_like(self, other: Layer, varying: dict[tuple[str, str], None]) -> bool:
        """Whether two layers are equal but for weights and whole numbers; the attributes with these are added."""
        if len(self.inside) != len(other.inside):
            return False
        for (path, mine), (its_path, its) in zip(self.inside, other.inside, strict=True):
            if path != its_path or type(mine) is not type(its) or mine.__dict__.keys() != its.__dict__.keys():
                return False
            others = its.__dict__
            for name, value in mine.__dict__.items():
                if value is others[name] or name == _CHILDREN:
                    continue
                if name in _HOOKS:
                    if others[name]:
                        return False
                elif not _is_alike(name, value, others[name], path, varying):
                    return False
        return True


def _is_alike(name: str, mine: Any, its: Any, path: str, varying: dict[tuple[str, str], None]) -> bool:
    if name in _TENSORS:
        return _forms(mine) == _forms(its)
    if type(mine) is int and type(its) is int:
        if mine != its:
            varying[path, name] = None
        return True
    return told(mine) == told(its)


def _forms(table: Mapping[str, torch.Tensor | None]) -> list[tuple[str, Any]]:
    return [(name, None if tensor is None else form_of(tensor)) for name, tensor in table.items()]


def groups(model: nn.Module) -> dict[nn.Module, tuple[Layer, Group]]:
    """Layers that are alike, each with its group: children of one list, with numbers for names."""
    found: dict[nn.Module, tuple[Layer, Group]] = {}
    for container in modules(model):
        children = module_table(container)
        if len(children) < _LEAST or not all(map(str.isdecimal, children)):
            continue
        alike: list[tuple[list[Layer], dict[tuple[str, str], None]]] = []
        for layer in (Layer(child) for child in children.values() if child is not None):
            for members, varying in alike:
                if members[0].is_like(layer, varying):
                    members.append(layer)
                    break
            else:
                alike.append(([layer], {}))
        for members, varying in alike:
            if len(members) >= _LEAST and members[0].is_plain():
                group = Group(tuple(layer.module for layer in members), tuple(varying))
                found.update((layer.module, (layer, group)) for layer in members)
    return found


def told(value: Any) -> Hashable:
    """A value as something that is equal for equal values; what may change in a run is equal to nothing."""
    kind = type(value)
    if kind in IMMUTABLE:
        return kind, repr(value) if kind in (float, complex) else value
    if kind in (tuple, list, set, frozenset):
        return kind, tuple(map(told, value))
    if kind is dict:
        return tuple((told(key), told(item)) for key, item in value.items())
    if kind is MethodType:
        return id(value.__func__), id(value.__self__)
    return object() if issubclass(kind, (torch.Tensor, nn.Module)) else id(value)
