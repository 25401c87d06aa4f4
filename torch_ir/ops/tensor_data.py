"""Tensors to the raw bytes of a constant, and back."""

from __future__ import annotations

import ctypes

import torch

from torch_ir.ir import TensorData
from torch_ir.ops.names import TORCH_DTYPES, dtype_name


def from_tensor(tensor: torch.Tensor) -> TensorData:
    """The elements of a tensor, row-major, bit for bit."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    raw = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""
    return TensorData(tuple(plain.shape), dtype_name(plain.dtype), raw)


def to_tensor(data: TensorData) -> torch.Tensor:
    """A tensor of its own with these elements."""
    dtype = TORCH_DTYPES[data.dtype]
    if not data.raw:
        return torch.empty(data.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data.raw), dtype=torch.uint8).view(dtype).reshape(data.shape)
