"""Weights that attributes hold beside the tables of their modules: torch.export puts other tensors into the tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.capture.walk import modules
from torch_ir.ops.torch_internals import buffer_table, parameter_table, pytree

_OWN = frozenset(vars(nn.Module()))


@contextmanager
def held_weights_followed(model: nn.Module) -> Iterator[None]:
    """When forward begins, let lists, tuples and dicts hold the tensors that the tables then have for their weights."""
    slots = {
        id(weight): (table, name)
        for module in modules(model)
        for table in (parameter_table(module), buffer_table(module))
        for name, weight in table.items()
        if weight is not None
    }
    held = [
        (module.__dict__, name, value)
        for module in modules(model)
        for name, value in module.__dict__.items()
        if name not in _OWN and isinstance(value, (list, tuple, dict)) and _holds(value, slots)
    ]

    def now(tensor: torch.Tensor) -> Any:
        if id(tensor) not in slots:
            return tensor
        table, name = slots[id(tensor)]
        return table[name]

    def follow(*_: Any) -> None:
        for attributes, name, value in held:
            attributes[name] = pytree.tree_map_only(torch.Tensor, now, value)

    hooks = [model.register_forward_pre_hook(follow)] if held else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _holds(value: Any, slots: dict[int, Any]) -> bool:
    return any(id(leaf) in slots for leaf in pytree.tree_leaves(value))
