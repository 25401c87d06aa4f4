"""Copies of nested tensors that preserve strides, shared memory and `requires_grad`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from torch_ir.ops.tensor_data import byte_range
from torch_ir.ops.torch_internals import dense_memory_key, memory_key, pytree, storage_key

_Tree = TypeVar("_Tree")


def copied(tree: _Tree) -> _Tree:
    """Copy nested values; tensors that share memory also share it in the copy."""
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    ends: dict[int, int] = {}  # bytes of each storage that the tensors use
    for tensor in filter(_is_plain, tensors):
        storage = memory_key(tensor)
        ends[storage] = max(ends.get(storage, 0), byte_range(tensor)[1])
    storages: dict[int, torch.UntypedStorage] = {}
    memo = {id(tensor): _alike(_copy(tensor, ends, storages), tensor) for tensor in tensors}
    made: _Tree = pytree.tree_map_only(torch.Tensor, lambda tensor: memo[id(tensor)], tree)
    return made


def _alike(copy: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy as a leaf with the same `requires_grad`, and as a parameter if the original is one."""
    if type(tensor) is nn.Parameter:
        return nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


def copied_apart(tree: Any, held: Container[int | None]) -> Any:
    """Replace nested tensors that use the memory of others by copies."""

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        storage = dense_memory_key(tensor)
        return tensor.detach().clone() if storage is None or storage in held else tensor

    return pytree.tree_map_only(torch.Tensor, copy, tree)


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    return is_dense and type(tensor.detach()) is torch.Tensor and not tensor.is_conj() and not tensor.is_neg()


def _copy(tensor: torch.Tensor, ends: Mapping[int, int], storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    plain = tensor.detach()
    if not _is_plain(tensor):
        return plain.clone()
    storage = plain.untyped_storage()
    if storage_key(storage) not in storages:
        storages[storage_key(storage)] = storage[: ends[storage_key(storage)]].clone()
    made = torch.empty(0, dtype=plain.dtype, device=plain.device)
    return made.set_(storages[storage_key(storage)], plain.storage_offset(), plain.shape, plain.stride())
