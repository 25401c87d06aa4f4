"""Constants in the text form: short ones as decimals, others as hexadecimal bytes or without values.

constant c_steps: int16[2] = "steps" values [1, -1]
constant c_mask: float8_e5m2[4] = "mask" values 0x3c003c00
constant c_table: float32[20000] = "table" values ...
"""

from __future__ import annotations

import struct
from typing import Any

from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.constant_data import TensorData

_SHORT = 16  # elements; also bytes, for dtypes without decimals
_INTS = {"int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint64": "Q", "uint32": "I", "uint16": "H"}
_WHOLE = {**_INTS, "uint8": "B", "bool": "?"}
_FLOATS = {"float64": ("d", 17), "float32": ("f", 9), "float16": ("e", 5)}  # with digits that always suffice
_BFLOAT16_DIGITS = 4
LEFT_OUT = "..."


def print_data(data: TensorData, *, whole: bool = False) -> str:
    """Print the values on one line; those of a long constant are omitted unless `whole` is set."""
    try:
        if data.size // DTYPES[data.dtype] <= _SHORT and (numbers := _decimals(data)) is not None:
            return f"[{', '.join(numbers)}]"
        return f"0x{data.raw.hex()}" if whole or data.size <= _SHORT else LEFT_OUT
    except SerializationError:  # the side file is damaged; print the graph anyway
        if whole:
            raise
        return LEFT_OUT


def data_of(numbers: list[Any], shape: tuple[int, ...], dtype: str) -> TensorData:
    """Build the constant with these elements, row-major."""
    kinds: tuple[type, ...] = (bool,) if dtype == "bool" else (int,) if dtype in _WHOLE else (int, float)
    if any(type(number) not in kinds for number in numbers):
        raise GraphError(f"a constant of dtype {dtype!r} cannot hold all of its numbers", rule="R15")
    return TensorData(shape, dtype, TensorData.from_numbers(numbers, dtype).raw)


def _decimals(data: TensorData) -> list[str] | None:
    """Return each element as the shortest decimal that reads back as the same bits; None if decimals cannot."""
    if data.dtype in _WHOLE:
        return [str(number) for (number,) in struct.iter_unpack(f"<{_WHOLE[data.dtype]}", data.raw)]
    if data.dtype == "bfloat16":
        halves = (data.raw[at : at + 2] for at in range(0, len(data.raw), 2))
        floats = [struct.unpack("<f", b"\0\0" + half)[0] for half in halves]
        digits = _BFLOAT16_DIGITS
    elif data.dtype in _FLOATS:
        sign, digits = _FLOATS[data.dtype]
        floats = [number for (number,) in struct.iter_unpack(f"<{sign}", data.raw)]
    else:
        return None
    texts = [_shortest(number, data.dtype, digits) for number in floats]
    again = TensorData.from_numbers([float(text) for text in texts], data.dtype)
    return texts if again.raw == data.raw else None  # a NaN may have a payload


def _shortest(number: float, dtype: str, digits: int) -> str:
    raw = TensorData.from_numbers([number], dtype).raw
    for count in range(1, digits + 1):
        text = repr(float(f"{number:.{count}g}"))
        try:
            if TensorData.from_numbers([float(text)], dtype).raw == raw:
                return text
        except GraphError:  # rounded up, it overflows its dtype
            continue
    return repr(number)
