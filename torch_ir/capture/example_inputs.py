"""Example inputs without shared memory or storage offsets, as a graph expects them."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.ops.torch_internals import is_traceable_wrapper_subclass, memory_key, pytree


class OwnMemory:
    """Copies a tensor that shares memory with an earlier one or has a storage offset; returns any other unchanged."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta or tensor.layout != torch.strided or is_traceable_wrapper_subclass(tensor):
            return tensor
        memory = memory_key(tensor)
        is_alone = memory not in self._seen and not tensor.storage_offset()
        self._seen.add(memory)
        return tensor if is_alone else _copy(tensor).requires_grad_(tensor.requires_grad)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, even where elements overlap."""
    tensor = tensor.detach()
    if not tensor.numel():
        return tensor.clone()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (
        tensor.as_strided((span,), (1,), tensor.storage_offset()).clone().as_strided(tensor.shape, tensor.stride(), 0)
    )


def shared_inputs(call: Any) -> list[tuple[str, str]]:
    """Return pairs of example inputs that share memory, by their paths in the call."""
    first: dict[int, str] = {}
    pairs = []
    for path, leaf in pytree.tree_flatten_with_path(call)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not is_traceable_wrapper_subclass(leaf):
            place, memory = f"input{pytree.keystr(path[1:])}", memory_key(leaf)
            if first.setdefault(memory, place) != place:
                pairs.append((first[memory], place))
    return pairs
