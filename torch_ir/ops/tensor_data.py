"""Plain tensors, and the raw bytes of constants."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_ir.errors import ConversionError, GraphError
from torch_ir.ir import Dim, TensorData
from torch_ir.ops.torch_internals import is_traceable_wrapper_subclass
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name

_ALIKE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # for dtypes that torch cannot copy
_MOST_SPREAD = 1 << 30  # bytes of memory that a constant with strides may span; those between its elements are not used


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
    count, elements = int(places.max()) + 1, flat.view(-1, dtype.itemsize)
    if count * dtype.itemsize > max(_MOST_SPREAD, 64 * len(data.raw)):
        raise GraphError(f"a constant of {len(data.raw)} bytes has strides {steps}, which spread it too far", rule="R2")
    memory = torch.zeros((count, dtype.itemsize), dtype=torch.uint8, device="cpu")
    memory[places.flatten()] = elements
    if not torch.equal(memory[places.flatten()], elements):
        raise GraphError(f"a constant has strides {steps}, so that elements with different values overlap", rule="R7")
    return memory.view(dtype).as_strided(data.shape, steps)


def spread_bytes(data: TensorData, stride: Sequence[Dim] | None) -> int:
    """Return the bytes of memory that a constant with these strides spans, those between its elements included."""
    steps = [step for step in stride or () if isinstance(step, int)]
    if not data.raw or len(steps) != len(data.shape):
        return len(data.raw)
    last = sum((size - 1) * abs(step) for size, step in zip(data.shape, steps, strict=True))
    return (last + 1) * TORCH_DTYPES[data.dtype].itemsize


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the range of bytes that a tensor spans in its storage; it is empty if the tensor is."""
    size, first = tensor.element_size(), tensor.storage_offset()
    if not tensor.numel():
        return 0, 0
    last = first + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(first * size), int((last + 1) * size)


def plain_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each wrapper, such as a quantised weight, by its plain tensors: `fc.weight.qdata`, `fc.weight.scale`."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if is_traceable_wrapper_subclass(value):
            names = value.__tensor_flatten__()[0]
            plain.update(plain_tensors({f"{key}.{name}": getattr(value, name) for name in names}))
        else:
            plain[key] = value
    return plain
