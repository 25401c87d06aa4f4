"""Refuse graphs that write to a tensor whose memory shows in another: a graph has each as if it stood alone."""

from __future__ import annotations

import torch
from torch import nn

from torch_ir.capture.state.python_state import PythonState, written
from torch_ir.errors import ConversionError
from torch_ir.ir import IR
from torch_ir.ops.torch_internals import memory_key
from torch_ir.ops.torch_types import dtype_name


def refuse_shared_memory(model: nn.Module, ir: IR) -> None:
    """Refuse a write to a weight that shows in another, or in a tensor that the graph has as a constant."""
    keys = {target.key for target, _ in ir.mutations}
    if not any(keys):
        return
    weights = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    constants = {
        (tuple(param.shape), param.dtype) for param in ir.params if param.param and param.param.kind == "constant"
    }
    others = [
        (written(path), tensor)
        for path, tensor in PythonState(model).tensors
        if (tuple(tensor.shape), dtype_name(tensor.dtype)) in constants
    ]
    owners = {_memory(tensor): (key, tensor) for key, tensor in weights if key in keys}
    for key, tensor in (*weights, *others):
        owner, other = owners.get(_memory(tensor), (key, tensor))
        if other is not tensor:
            raise ConversionError(f"forward writes to {owner!r}, which shares its memory with {key!r}; make one a copy")


def _memory(tensor: torch.Tensor) -> int | None:
    return memory_key(tensor) if tensor.layout == torch.strided else id(tensor)
