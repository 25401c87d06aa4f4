"""Trace without weights: while a model is captured, its weights are fake tensors that know shape, dtype and device."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.ops.tensor_subclasses import is_made_of_others
from torch_ir.ops.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    buffer_table,
    count_as_parameter,
    fake_mode,
    non_persistent_names,
    parameter_table,
    pytree,
    transform_subclass,
)

_OWN = frozenset(vars(nn.Module()))  # the tables that every module has
_ABSENT = object()


@contextmanager
def weight_free(model: nn.Module) -> Iterator[tuple[FakeTensorMode, Collection[torch.Tensor]]]:
    """Swap weights, and everything else on meta, for fake tensors; put the originals back on leaving.

    What is on meta is traced as if on cpu, so that constants beside it keep their values and the graph does not speak
    of meta. Buffers that no state dict holds, and plain tensor attributes, stay real when they are. Yields the mode of
    the fake tensors, and those that were put in.
    """
    mode = fake_mode()
    fakes: dict[int, torch.Tensor] = {}
    swapped: list[tuple[MutableMapping[str, Any], str, Any]] = []

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        """One fake for each tensor, so that tied weights stay tied."""
        if id(tensor) not in fakes:
            fakes[id(tensor)] = fake_copy(tensor, mode)
            # nn.Parameter(...) would do it by way of a dispatch
            count_as_parameter(fakes[id(tensor)], isinstance(tensor, nn.Parameter))
        return fakes[id(tensor)]

    def swap(table: MutableMapping[str, Any], name: str, new: Any) -> None:
        swapped.append((table, name, table.get(name, _ABSENT)))
        table[name] = new

    def is_swapped(value: Any) -> bool:
        """Whether a value is blank, or a weight that is held elsewhere, too, which must stay the same tensor."""
        return _is_blank(value) or id(value) in fakes

    def swap_attribute(table: MutableMapping[str, Any], name: str, value: Any) -> None:
        """A plain tensor, or a container of some; these are also named one by one, or torch would make up names."""
        found = [path for path, leaf in pytree.tree_flatten_with_path(value)[0] if is_swapped(leaf)]
        if not found:
            return
        new = pytree.tree_map_only(torch.Tensor, lambda tensor: fake(tensor) if is_swapped(tensor) else tensor, value)
        swap(table, name, new)
        for path in filter(None, found):
            swap(table, ".".join([name, *map(_step, path)]), pytree.key_get(new, path))

    try:
        for module in model.modules():
            for name, parameter in list(parameter_table(module).items()):
                if parameter is not None:
                    swap(parameter_table(module), name, fake(parameter))
            for name, buffer in list(buffer_table(module).items()):
                if buffer is not None and (_is_blank(buffer) or name not in non_persistent_names(module)):
                    swap(buffer_table(module), name, fake(buffer))
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if name not in _OWN and isinstance(value, (torch.Tensor, list, tuple, dict)):
                    swap_attribute(vars(module), name, value)
        yield mode, fakes.values()
    finally:
        for table, name, old in reversed(swapped):
            if old is _ABSENT:
                table.pop(name, None)
            else:
                table[name] = old


def fake_copy(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor like this one; what is on meta is taken for cpu."""
    if is_made_of_others(tensor):
        whole: torch.Tensor = transform_subclass(  # type: ignore[no-untyped-call]  # torch's own
            tensor, lambda _, inner: fake_copy(inner, mode)
        )
        return whole
    device = torch.device("cpu") if tensor.is_meta else tensor.device
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return FakeTensor(mode, empty, device).requires_grad_(tensor.requires_grad)  # forward may ask for it


def has_no_values(model: nn.Module, call: Any) -> bool:
    """Whether a tensor of the model or of the inputs is on meta or fake, so that nobody can say what it holds."""
    held = itertools.chain(model.parameters(), model.buffers(), pytree.tree_leaves(call))
    return any(map(_is_blank, held))


def _is_blank(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_meta or isinstance(value, FakeTensor))


def _step(key: Any) -> str:
    """One step into a container, as text: the index, key or field."""
    return str(getattr(key, "idx", getattr(key, "key", getattr(key, "name", key))))
