"""The modules of a model as a list: torch's own generators hand each module up through every level above it."""

from __future__ import annotations

from typing import Any

from torch import nn

from torch_ir.ops.torch_internals import module_table


def walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module with its path, in torch's order; one with several names comes under each."""
    found = [("", model)]
    _add_children("", model, found)
    return found


def _add_children(prefix: str, module: nn.Module, found: list[tuple[str, nn.Module]]) -> None:
    for name, child in module_table(module).items():
        if child is not None:
            found.append((prefix + name, child))
            if module_table(child):
                _add_children(f"{prefix}{name}.", child, found)


_TABLES = frozenset(vars(nn.Module()))


def own_attributes(module: nn.Module) -> list[tuple[str, Any]]:
    """The attributes of a module beside those that every module has."""
    return [item for item in module.__dict__.items() if item[0] not in _TABLES]


def modules(model: nn.Module) -> list[nn.Module]:
    """Every module once."""
    return list(dict.fromkeys(module for _, module in walk(model)))
