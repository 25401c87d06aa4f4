"""Conversion between torch's typed objects and the IR's typed names."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.errors import ConversionError
from torch_ir.ir import Device, Dtype, Layout, MemoryFormat
from torch_ir.ir.graph.attr_types import DTYPES, LAYOUTS, MEMORY_FORMATS

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
_DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_LAYOUTS: dict[str, torch.layout] = {name: getattr(torch, name) for name in LAYOUTS if hasattr(torch, name)}
_FORMATS: dict[str, torch.memory_format] = {name: getattr(torch, name) for name in MEMORY_FORMATS}


def dtype_name(dtype: torch.dtype) -> str:
    """Return `"float32"` for `torch.float32`."""
    if dtype not in _DTYPE_NAMES:
        raise ConversionError(f"{dtype} has no name in the IR")
    return _DTYPE_NAMES[dtype]


def to_name(value: Any) -> Any:
    """Convert a torch object to a typed name; other values are returned unchanged."""
    if isinstance(value, torch.dtype):
        return Dtype(dtype_name(value))
    if isinstance(value, torch.device):
        return Device(str(value))
    if isinstance(value, torch.layout):
        return Layout(str(value).removeprefix("torch."))
    if isinstance(value, torch.memory_format):
        return MemoryFormat(str(value).removeprefix("torch."))
    return value


def to_torch(value: Any) -> Any:
    """Convert a typed name to the torch object; other values are returned unchanged."""
    if isinstance(value, Dtype):
        return TORCH_DTYPES[value]
    if isinstance(value, Device):
        return torch.device(value)
    if isinstance(value, Layout):
        return _LAYOUTS[value]
    if isinstance(value, MemoryFormat):
        return _FORMATS[value]
    return value
