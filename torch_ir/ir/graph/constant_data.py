"""Values of a constant: raw little-endian bytes with a shape and a dtype; no torch needed."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.graph.attr_types import DTYPES

_MOST = (1 << 63) - 1  # elements
_FORMATS = {
    "float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
    "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?",
}  # fmt: skip


class Array(Protocol):
    """A torch tensor or numpy array, without importing either."""

    @property
    def shape(self) -> Iterable[int]: ...

    @property
    def dtype(self) -> object: ...

    def tolist(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class TensorData:
    """The elements of a tensor, row-major."""

    shape: tuple[int, ...]
    dtype: str
    raw: bytes = field(repr=False)

    def __post_init__(self) -> None:
        self._check_facts()
        self._check_bytes(self.raw)

    def _check_facts(self) -> None:
        if self.dtype not in DTYPES:
            hint = suggestion(str(self.dtype), DTYPES)
            raise GraphError(f"unknown dtype {self.dtype!r:.60}", "$.dtype", rule="R5", hint=hint)
        if any(type(dim) is not int or dim < 0 for dim in self.shape):
            raise GraphError(f"a constant cannot have the shape {list(self.shape)!r:.200}", "$.shape", rule="R15")
        room = _MOST
        for dim in self.shape:  # one at a time: the product of a hostile shape takes hours
            room //= dim or 1
        if not room:
            raise GraphError("a constant has more elements than 64 bits can count", "$.shape", rule="R15")

    def _check_bytes(self, raw: bytes) -> None:
        if len(raw) != self.size:
            message = f"{self.dtype}{list(self.shape)!r:.200} takes {self.size} bytes, but {len(raw)} were given"
            raise GraphError(message, rule="R15")
        if self.dtype == "bool" and raw.strip(b"\0\1"):
            raise GraphError("a constant of dtype 'bool' holds bytes that are neither 0 nor 1", rule="R15")

    @property
    def size(self) -> int:
        """Size of the elements in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorData):
            return NotImplemented
        return (self.shape, self.dtype, self.raw) == (other.shape, other.dtype, other.raw)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorData:
        """Return the object itself: it is immutable, and its bytes may still be on disk."""
        return self

    @classmethod
    def of(cls, value: TensorData | Array) -> TensorData:
        """Convert a torch tensor or numpy array; a TensorData is returned unchanged."""
        if isinstance(value, TensorData):
            return value
        numbers, dtype = value.tolist(), str(value.dtype).removeprefix("torch.")
        return cls(tuple(value.shape), dtype, cls.from_numbers(numbers, dtype).raw)

    @classmethod
    def from_numbers(cls, numbers: Any, dtype: str) -> TensorData:
        """Build a constant from nested lists of decimals, as in the documented JSON."""
        shape, flat = _flatten(numbers)
        if dtype not in _FORMATS and dtype != "bfloat16":
            raise GraphError(f"constants of dtype {dtype!r:.60} cannot be written as decimals", "$.dtype", rule="R15")
        if any(type(number) not in (int, float, bool) for number in flat):
            raise GraphError("a constant holds something that is not a number", "$.data", rule="R15")
        try:
            if dtype == "bfloat16":
                raw = b"".join(map(_bfloat16, flat))
            else:
                raw = struct.pack(f"<{len(flat)}{_FORMATS[dtype]}", *flat)
        except (struct.error, OverflowError) as error:
            message = f"a constant of dtype {dtype!r} cannot hold its numbers: {error}"
            raise GraphError(message, "$.data", rule="R15") from None
        return cls(shape, dtype, raw)


def static_shape(shape: Sequence[int | str]) -> tuple[int, ...]:
    """Return the shape of a constant; raise GraphError if a size is symbolic."""
    numbers = tuple(dim for dim in shape if isinstance(dim, int))
    if len(numbers) != len(shape):
        raise GraphError(f"a constant cannot have the shape {list(shape)!r:.200}", "$.shape", rule="R15")
    return numbers


def _bfloat16(number: float) -> bytes:
    """Return the nearest bfloat16, which is the upper half of a float32, as torch rounds: ties to even."""
    bits = int.from_bytes(struct.pack("<f", number), "little")
    if math.isfinite(number):
        bits += 0x7FFF + (bits >> 16 & 1)
        if bits & 0x7F800000 == 0x7F800000:
            raise OverflowError("float too large to pack with bfloat16 format")
    return (bits >> 16).to_bytes(2, "little")


def _flatten(numbers: Any) -> tuple[tuple[int, ...], list[Any]]:
    shape: list[int] = []
    level = [numbers]
    while level and isinstance(level[0], list):
        width = len(level[0])
        if any(not isinstance(row, list) or len(row) != width for row in level):
            raise GraphError("rows of a constant differ in length", "$.data", rule="R15")
        shape.append(width)
        level = [item for row in level for item in row]
    return tuple(shape), level
