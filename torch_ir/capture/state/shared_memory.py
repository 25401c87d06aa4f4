"""Refuse graphs that write to a tensor which shares memory with another: the tensors of a graph share none."""

from __future__ import annotations

import torch
from torch import nn

from torch_ir.capture.state.python_state import PythonState, written
from torch_ir.capture.walk import weights
from torch_ir.errors import ConversionError
from torch_ir.ir import IR
from torch_ir.ops.torch_internals import dense_memory_key
from torch_ir.ops.torch_types import dtype_name


def refuse_shared_memory(model: nn.Module, ir: IR) -> None:
    """Refuse a write to a weight that shares memory with another weight or with a constant of the graph."""
    keys = {target.key for target, _ in ir.mutations}
    if not any(keys):
        return
    held = [(weight.key, weight.tensor) for weight in weights(model)]
    constants = {
        (tuple(param.shape), param.dtype) for param in ir.params if param.param and param.param.kind == "constant"
    }
    others = [
        (written(path), tensor)
        for path, tensor in PythonState(model).tensors
        if (tuple(tensor.shape), dtype_name(tensor.dtype)) in constants
    ]
    owners = {_memory(tensor): (key, tensor) for key, tensor in held if key in keys}
    for key, tensor in (*held, *others):
        owner, other = owners.get(_memory(tensor), (key, tensor))
        if other is not tensor:
            raise ConversionError(f"forward writes to {owner!r}, which shares its memory with {key!r}; make one a copy")


def _memory(tensor: torch.Tensor) -> int:
    memory = dense_memory_key(tensor)
    return id(tensor) if memory is None else memory
