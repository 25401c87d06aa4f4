"""StableHLO syntax of types, numbers and elements."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim, TensorData
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.mlir.syntax import ELEMENTS, nested, number

_ELEMENTS = {
    **{dtype: text.removeprefix("s") for dtype, text in ELEMENTS.items()},  # signed integers are signless here
    **{f"uint{bits}": f"ui{bits}" for bits in (16, 32, 64)},
}
_BITS = {"float64": ("d", "Q"), "float32": ("f", "I"), "float16": ("e", "H")}  # struct codes of a float and its bits
HALVES = ("float16", "bfloat16")
REALS = {"complex64": "float32", "complex128": "float64"}
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")


def is_float(dtype: str) -> bool:
    return "float" in dtype


def is_complex(dtype: str) -> bool:
    return dtype in REALS


def is_integer(dtype: str) -> bool:
    """Whether a dtype holds whole numbers; bool does not."""
    return "int" in dtype


def element(dtype: str) -> str:
    """Return the element type of a dtype: `f32` for float32."""
    if dtype not in _ELEMENTS:
        raise ConversionError(f"StableHLO has no elements of dtype {dtype}")
    return _ELEMENTS[dtype]


def tensor_type(shape: Sequence[Dim], dtype: str) -> str:
    """Return a type such as `tensor<?x8xf32>`."""
    return f"tensor<{'x'.join([*('?' if isinstance(dim, str) else str(dim) for dim in shape), element(dtype)])}>"


def scalar_text(value: Any, dtype: str) -> str:
    """Return a number as an element of a dtype, rounded as torch rounds it; integers wrap around."""
    if is_complex(dtype):
        value = complex(value)
        parts = (scalar_text(part, REALS[dtype]) for part in (value.real, value.imag))
        return f"({', '.join(parts)})"
    if dtype == "bool":
        return number(bool(value))
    if not is_float(dtype):
        limits = torch.iinfo(TORCH_DTYPES[dtype])
        return str((int(value) - limits.min) % (1 << limits.bits) + limits.min)
    rounded = float(torch.tensor(value, dtype=TORCH_DTYPES[dtype]).to(torch.float64))
    if rounded - rounded == 0:
        _check_normal(abs(rounded), dtype)
        return number(rounded)
    if dtype == "bfloat16":
        return f"0x{struct.unpack('>I', struct.pack('>f', rounded))[0] >> 16:04X}"
    if dtype not in _BITS:
        raise ConversionError(f"{value} is not a finite constant of dtype {dtype}")
    code, bits = _BITS[dtype]
    return f"0x{struct.unpack(f'>{bits}', struct.pack(f'>{code}', rounded))[0]:0{2 * struct.calcsize(bits)}X}"


def _check_normal(size: float, dtype: str) -> None:
    """Refuse a number that XLA flushes to zero; those of float16 are normal in float32, in which XLA computes."""
    if dtype != "float16" and 0 < size < torch.finfo(TORCH_DTYPES[dtype]).tiny:
        raise ConversionError(f"the constant {size:.2g} is subnormal in {dtype}, which XLA flushes to zero")


def dense(data: TensorData) -> str:
    """Return the elements of a constant: `dense<"0x...">`; bools are written out."""
    if not data.raw:
        return "dense<>"
    if is_float(data.dtype) or is_complex(data.dtype):
        dtype = REALS.get(data.dtype, data.dtype)
        sizes = torch.frombuffer(bytearray(data.raw), dtype=TORCH_DTYPES[dtype]).abs()
        _check_normal(float(sizes[sizes > 0].min()) if bool((sizes > 0).any()) else 0.0, dtype)
    if data.dtype == "bool":
        return f"dense<{nested(['true' if byte else 'false' for byte in data.raw], data.shape)}>"
    return f'dense<"0x{data.raw.hex().upper()}">'
