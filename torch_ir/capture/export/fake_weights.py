"""Replace a model's weights by fake tensors, which have a shape, dtype and device but no memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.capture.state.side_effects import note_change
from torch_ir.capture.state.weight_attributes import WeightAttributes
from torch_ir.capture.walk import modules, own_attributes, weights
from torch_ir.ops.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    count_as_parameter,
    fake_mode,
    is_traceable_wrapper_subclass,
    pytree,
    transform_subclass,
)

_ABSENT = object()


@contextmanager
def weight_free(model: nn.Module) -> Iterator[tuple[FakeTensorMode, Collection[torch.Tensor]]]:
    """Replace weights, and all other tensors on meta, by fake tensors; restore the originals at the end.

    Tensors on meta become fake tensors on cpu, so that constants keep their values and the graph does not contain the
    meta device. Non-persistent buffers and plain tensor attributes with values stay real. Yields the fake mode and the
    fake tensors.
    """
    mode = fake_mode()
    fakes: dict[int, torch.Tensor] = {}
    attributes = WeightAttributes()
    swapped: list[tuple[MutableMapping[str, Any], str, Any]] = []

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        """One fake for each tensor, so that tied weights stay tied."""
        if id(tensor) not in fakes:
            fakes[id(tensor)] = fake_copy(tensor, mode)
            # nn.Parameter(...) would dispatch an operator
            count_as_parameter(fakes[id(tensor)], isinstance(tensor, nn.Parameter))
        return fakes[id(tensor)]

    def swap(table: MutableMapping[str, Any], name: str, new: Any) -> None:
        swapped.append((table, name, table.get(name, _ABSENT)))
        table[name] = new

    def is_swapped(value: Any) -> bool:
        """Whether a value has no values, or is a weight, which must stay the same object everywhere."""
        return is_blank(value) or id(value) in fakes

    def swap_attribute(table: MutableMapping[str, Any], name: str, value: Any) -> None:
        """Replace a tensor, or those in a container, which also become attributes: torch names them after these."""
        found = [path for path, leaf in pytree.tree_flatten_with_path(value)[0] if is_swapped(leaf)]
        if not found:
            return
        new = pytree.tree_map_only(torch.Tensor, lambda tensor: fake(tensor) if is_swapped(tensor) else tensor, value)
        swap(table, name, new)
        for path in filter(None, found):
            swap(table, ".".join([name, *map(_step, path)]), pytree.key_get(new, path))

    try:
        for weight in list(weights(model)):
            is_swapped_already = weight.table[weight.name] is not weight.tensor  # in a shared module
            if not is_swapped_already and (weight.kind != "temporary" or is_blank(weight.tensor)):
                swap(weight.table, weight.name, fake(weight.tensor))
                attributes.give(weight.key, weight.tensor, fake(weight.tensor))
        for module in modules(model):
            for name, value in own_attributes(module):
                if isinstance(value, (torch.Tensor, list, tuple, dict)):
                    swap_attribute(vars(module), name, value)
        yield mode, fakes.values()
    finally:
        for name in attributes.changed():
            note_change(name)
        for table, name, old in reversed(swapped):
            if old is _ABSENT:
                table.pop(name, None)
            else:
                table[name] = old


def fake_copy(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake tensor with the same metadata; a meta tensor becomes one on cpu."""
    if is_traceable_wrapper_subclass(tensor):
        whole: torch.Tensor = transform_subclass(  # type: ignore[no-untyped-call]  # torch's own
            tensor, lambda _, inner: fake_copy(inner, mode)
        )
        return whole
    device = torch.device("cpu") if tensor.is_meta else tensor.device
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(mode, empty, device).requires_grad_(tensor.requires_grad)  # forward may read it


def has_no_values(model: nn.Module, call: Any) -> bool:
    """Whether a tensor of the model or of the inputs is on meta or fake."""
    held = itertools.chain(model.parameters(), model.buffers(), pytree.tree_leaves(call))
    return any(map(is_blank, held))


def is_blank(value: Any) -> bool:
    """Whether a value is a tensor without values: on meta, or fake."""
    return isinstance(value, torch.Tensor) and (value.is_meta or isinstance(value, FakeTensor))


def _step(key: Any) -> str:
    """Return one step of a key path as text: the index, key or field."""
    return str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key))))
