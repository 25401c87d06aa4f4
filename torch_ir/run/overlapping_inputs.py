"""Inputs that share memory: a graph that writes to one of them is that of inputs which share none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ops.torch_internals import memory_key


def storage_of(value: Any) -> int | None:
    """What tells whether two tensors share memory."""
    is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return memory_key(value) if is_dense else None


def refuse_shared_memory(ir: IR, written: Sequence[TensorMeta], values: Sequence[Any], params: Iterable[Any]) -> None:
    """Refuse an input that shares memory with a tensor that the graph writes to: it would show in the model's own run.

    `written` are inputs and weights; `values` and `params` are the values of all of them, in order.
    """
    names = {tensor: f"input {tensor.name!r}" for tensor in ir.graph_inputs}
    names.update((tensor, f"weight {tensor.key!r}") for tensor in ir.params)
    found = dict(zip(names, (*values, *params), strict=True))
    targets = {memory: tensor for tensor in written if (memory := storage_of(found[tensor])) is not None}
    for tensor in ir.graph_inputs:
        target = targets.get(storage_of(found[tensor]) or 0, tensor)
        if target is not tensor and _may_overlap(found[tensor], found[target]):
            raise ExecutionError(
                f"{names[tensor]} shares memory with {names[target]}, to which the graph writes; it was captured "
                "for tensors that share none: clone one of them"
            )


def _may_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage reach into the same stretch of it."""
    (begin, end), (other_begin, other_end) = map(_stretch, (one, other))
    return begin < other_end and other_begin < end


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage from the first to behind the last element."""
    size, first = tensor.element_size(), tensor.storage_offset()
    if not tensor.numel():
        return 0, 0
    last = first + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(first * size), int((last + 1) * size)
