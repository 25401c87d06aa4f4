"""The modules of a model, and the weights that they hold, as lists: torch's generators are slow on deep models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_ir.ops.torch_internals import buffer_table, module_table, non_persistent_names, parameter_table

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


class Weight(NamedTuple):
    """A parameter or buffer, and the entry of a module's table that holds it."""

    key: str
    tensor: torch.Tensor
    kind: str  # "parameter", "buffer", or "temporary": a buffer that no state dict holds
    table: MutableMapping[str, Any]
    name: str


def walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return every module with its path, in torch's order; a shared module is listed under each of its paths."""
    found = [("", model)]
    _add_children("", module_table(model), found)
    return found


def _add_children(prefix: str, table: Mapping[str, nn.Module | None], found: list[tuple[str, nn.Module]]) -> None:
    for name, child in table.items():
        if child is not None:
            path = prefix + name
            found.append((path, child))
            if inner := module_table(child):
                _add_children(path + ".", inner, found)


def modules(model: nn.Module) -> list[nn.Module]:
    """Return every module once."""
    return list(dict.fromkeys(module for _, module in walk(model)))


def weights(model: nn.Module) -> Iterator[Weight]:
    """Yield parameters, then buffers, under each of their keys; a table is read when its module is reached."""
    found = walk(model)
    for path, module in found:
        parameters = parameter_table(module)
        for name, tensor in list(parameters.items()):
            if tensor is not None:
                yield Weight(f"{path}.{name}" if path else name, tensor, "parameter", parameters, name)
    for path, module in found:
        buffers = buffer_table(module)
        for name, buffer in list(buffers.items()):
            if buffer is not None:
                kind = "temporary" if name in non_persistent_names(module) else "buffer"
                yield Weight(f"{path}.{name}" if path else name, buffer, kind, buffers, name)


def own_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the attributes of a module, without those that every module has."""
    attributes = module.__dict__
    return [(name, attributes[name]) for name in without((*attributes,), _MODULE_ATTRIBUTES)]


@lru_cache(maxsize=4096)
def without(names: tuple[str, ...], others: frozenset[str]) -> tuple[str, ...]:
    """Return names without some others; the modules of a class mostly have the same, so this is remembered."""
    return tuple(name for name in names if name not in others)
