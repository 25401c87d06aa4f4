"""Detect inputs that share memory with a tensor that the graph writes to: it was captured for inputs that do not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ops.tensor_data import byte_range
from torch_ir.ops.torch_internals import dense_memory_key


def refuse_shared_memory(ir: IR, written: Sequence[TensorMeta], values: Sequence[Any], params: Iterable[Any]) -> None:
    """Raise ExecutionError if an input shares memory with a tensor that the graph writes to.

    `written` are inputs and weights; `values` and `params` are the values of all of them, in order.
    """
    names = {tensor: f"input {tensor.name!r}" for tensor in ir.graph_inputs}
    names.update((tensor, f"weight {tensor.key!r}") for tensor in ir.params)
    found = dict(zip(names, (*values, *params), strict=True))
    targets = {memory: tensor for tensor in written if (memory := dense_memory_key(found[tensor])) is not None}
    for tensor in ir.graph_inputs:
        target = targets.get(dense_memory_key(found[tensor]) or 0, tensor)
        if target is not tensor and _may_overlap(found[tensor], found[target]):
            raise ExecutionError(
                f"{names[tensor]} shares memory with {names[target]}, to which the graph writes; it was captured "
                "for tensors that share none: clone one of them"
            )


def _may_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage overlap in bytes."""
    (begin, end), (other_begin, other_end) = map(byte_range, (one, other))
    return begin < other_end and other_begin < end
