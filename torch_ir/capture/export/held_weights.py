"""Weights that attributes hold besides the tables of their modules, whose tensors torch.export replaces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from torch_ir.capture.walk import modules, own_attributes, weights
from torch_ir.ops.torch_internals import pytree


@contextmanager
def held_weights_followed(model: nn.Module) -> Iterator[None]:
    """When forward begins, replace weights in lists, tuples and dicts by the tensors that the tables then hold."""
    slots = {id(weight.tensor): (weight.table, weight.name) for weight in weights(model)}
    held = [
        (module.__dict__, name, value)
        for module in modules(model)
        for name, value in own_attributes(module)
        if isinstance(value, (list, tuple, dict)) and _holds(value, slots)
    ]

    def now(tensor: torch.Tensor) -> Any:
        if id(tensor) not in slots:
            return tensor
        table, name = slots[id(tensor)]
        return table[name]

    def follow(*_: Any) -> None:
        for attributes, name, value in held:
            attributes[name] = pytree.tree_map_only(torch.Tensor, now, value)

    with model.register_forward_pre_hook(follow) if held else nullcontext():
        yield


def _holds(value: Any, slots: dict[int, Any]) -> bool:
    return any(id(leaf) in slots for leaf in pytree.tree_leaves(value))
