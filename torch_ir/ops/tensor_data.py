"""Convert tensors to the raw bytes of a constant, and back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim, TensorData
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name

_ALIKE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # for dtypes that torch cannot copy


def from_tensor(tensor: torch.Tensor) -> TensorData:
    """Return the elements of a tensor, row-major, bit for bit."""
    if tensor.layout != torch.strided:
        raise ConversionError(f"a constant cannot have layout {tensor.layout}; make it dense with to_dense()")
    if not tensor.numel():  # also works on meta
        return TensorData(tuple(tensor.shape), dtype_name(tensor.dtype), b"")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    plain = plain.view(_ALIKE.get(plain.element_size(), plain.dtype)).contiguous()
    raw = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())
    return TensorData(tuple(plain.shape), dtype_name(tensor.dtype), raw)


def to_tensor(data: TensorData, stride: Sequence[Dim] | None = None) -> torch.Tensor:
    """Return a new tensor with these elements, row-major or with the given strides."""
    dtype = TORCH_DTYPES[data.dtype]
    if not data.raw:
        return torch.empty(data.shape, dtype=dtype, device="cpu")
    flat = torch.frombuffer(bytearray(data.raw), dtype=torch.uint8)
    steps = [step for step in stride or () if isinstance(step, int)]
    if len(steps) != len(data.shape):
        return flat.view(dtype).reshape(data.shape)
    places = torch.zeros(data.shape, dtype=torch.int64, device="cpu")
    for dim, step in enumerate(steps):
        places += (torch.arange(data.shape[dim], device="cpu") * step).view(-1, *[1] * (len(steps) - dim - 1))
    memory = torch.zeros((int(places.max()) + 1, dtype.itemsize), dtype=torch.uint8, device="cpu")
    memory[places.flatten()] = flat.view(-1, dtype.itemsize)  # overlapping elements are equal
    return memory.view(dtype).as_strided(data.shape, steps)
