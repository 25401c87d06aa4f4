"""MLIR syntax of types, names, numbers and elements."""

from __future__ import annotations

import math
import re
import struct
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_mlir
from torch_ir.ir import TensorData, TensorMeta

ELEMENTS = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "float8_e4m3fn": "f8E4M3FN", "float8_e4m3fnuz": "f8E4M3FNUZ", "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ", "int64": "si64", "int32": "si32", "int16": "si16", "int8": "si8", "uint8": "ui8",
    "bool": "i1", "complex128": "complex<f64>", "complex64": "complex<f32>",
}  # fmt: skip
# codes of torch's C++ enumerations, which the torch dialect uses
DTYPE_CODES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex32": 8, "complex64": 9, "complex128": 10, "bool": 11, "bfloat16": 15, "float8_e5m2": 23,
    "float8_e4m3fn": 24, "float8_e5m2fnuz": 25, "float8_e4m3fnuz": 26,
}  # fmt: skip
LAYOUT_CODES = {"strided": 0}
FORMAT_CODES = {"contiguous_format": 0, "preserve_format": 1, "channels_last": 2, "channels_last_3d": 3}
_BARE = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)
_LONGEST = 200  # characters of a name


def torch_type(tensor: TensorMeta) -> str:
    """Return a type such as `!torch.vtensor<[?,8],f32>`."""
    shape = ",".join("?" if isinstance(dim, str) else str(dim) for dim in tensor.shape)
    return f"!torch.vtensor<[{shape}],{_element(tensor)}>"


def builtin_type(tensor: TensorMeta) -> str:
    """Return a type such as `tensor<4x8xf32>`, with signless integers."""
    element = _element(tensor)
    return _plain(tensor, element[1:] if element[:2] in ("si", "ui") else element)


def literal(tensor: TensorMeta, data: TensorData) -> str:
    """Return a literal such as `dense<"0x..."> : tensor<2xsi64>`; bools are written out."""
    if not data.raw:
        elements = ""
    elif data.dtype == "bool":
        elements = nested(["true" if byte else "false" for byte in data.raw], data.shape)
    else:
        elements = f'"0x{data.raw.hex().upper()}"'
    return f"dense<{elements}> : {_plain(tensor, _element(tensor))}"


def _plain(tensor: TensorMeta, element: str) -> str:
    return f"tensor<{'x'.join([*map(str, tensor.shape), element])}>"


def _element(tensor: TensorMeta) -> str:
    if tensor.dtype not in ELEMENTS:
        raise ConversionError(f"the torch dialect of MLIR has no elements of dtype {tensor.dtype}, as {tensor!r} has")
    return ELEMENTS[tensor.dtype]


def nested(items: list[str], shape: tuple[int, ...]) -> str:
    """Return the elements of a tensor as nested lists: `[[1, 2], [3, 4]]`."""
    for size in reversed(shape):
        items = [f"[{', '.join(items[at : at + size])}]" for at in range(0, len(items), size)]
    return items[0]


def symbol(name: str) -> str:
    """Return a symbol such as `@fc.weight`, quoted if necessary."""
    return f"@{name}" if _BARE.fullmatch(name) else f"@{in_mlir(name)}"


def value_name(text: str) -> str:
    """Return a text as the name of a value; the result may not be unique."""
    cleaned = re.sub(r"[^\w$.-]", "_", text, flags=re.ASCII)[:_LONGEST]
    return cleaned if _BARE.match(cleaned) else f"v_{cleaned}"


def number(value: Any) -> str:
    """Return a number as text: `3`, `true`, `1.0e-05`, `0x7FF0000000000000` for infinity."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return f"0x{struct.pack('>d', value).hex().upper()}"
    digits, mark, exponent = repr(value).partition("e")
    return f"{digits if '.' in digits else f'{digits}.0'}{mark}{exponent}"
