"""Attribute values by the types in torch's schemas."""

from typing import Any

from tests.random_irs.draws import Draw
from torch_ir.ir import Device, Dtype, Expr, Layout, MemoryFormat
from torch_ir.ir.graph.attr_types import DTYPES, LAYOUTS, MEMORY_FORMATS
from torch_ir.ops.torch_types import TORCH_DTYPES

_COMMON_DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool", "complex64")
_DEVICES = ("cpu", "meta", "cuda", "cuda:1", "mps", "xpu:0")
# Valid values by argument name; operators reject most other texts.
_WORDS = {
    "approximate": ("none", "tanh"),
    "rounding_mode": ("floor", "trunc"),
    "reduce": ("sum", "amax", "mean", "prod"),
    "indexing": ("ij", "xy"),
    "mode": ("bilinear", "reflect", "constant"),
    "side": ("left", "right"),
}
_DIM_NAMES = ("dim", "dims", "dim0", "dim1", "axis", "dimension", "start_dim", "end_dim", "source", "destination")
_POSITIVE = ("size", "kernel_size", "stride", "output_size", "groups", "chunks", "split_size", "k", "n", "repeats")


class Values:
    """Attribute values; the tame ones are those that most operators accept."""

    def __init__(self, draw: Draw, symbols: list[str], *, tame: bool) -> None:
        self.draw, self.symbols, self.tame = draw, symbols, tame

    def of(self, kind: Any, name: str, rank: int, length: int | None = None) -> Any:
        """A value of a schema's type for the argument of that name, where the first tensor has `rank` dimensions.

        A list has the `length` that the schema asks for, if it does.
        """
        makers = {
            "BoolType": lambda: self.draw.chance(0.5),
            "IntType": lambda: self._whole(name, rank),
            "SymIntType": lambda: self._open(name, rank),
            "FloatType": self._real,
            "NumberType": self._number,
            "StringType": lambda: self.draw.choice(_WORDS[name]) if self._knows(name) else self.draw.text(),
            "ScalarTypeType": lambda: Dtype(self.dtype()),
            "LayoutType": lambda: Layout("strided" if self.tame else self.draw.choice(sorted(LAYOUTS))),
            "DeviceObjType": lambda: Device("cpu" if self.tame else self.draw.choice(_DEVICES)),
            "MemoryFormatType": lambda: MemoryFormat(self.draw.choice(sorted(MEMORY_FORMATS))),
        }
        if kind.kind() == "OptionalType":
            inner = kind.getElementType()
            can_be = inner.kind() in (*makers, "ListType") and self.draw.chance(0.5)
            return self.of(inner, name, rank, length) if can_be else None
        if kind.kind() == "ListType":
            count = length if length and length > 1 and self.tame else self._length(name, rank)
            return [self.of(kind.getElementType(), name, rank) for _ in range(count)]
        return makers[kind.kind()]()

    def dtype(self) -> str:
        """Any dtype; one that torch has, where values must be tame."""
        if self.draw.chance(0.7):
            return self.draw.choice(_COMMON_DTYPES)
        return self.draw.choice(sorted(TORCH_DTYPES) if self.tame else sorted(DTYPES))

    def _knows(self, name: str) -> bool:
        return name in _WORDS and (self.tame or self.draw.chance(0.5))

    def _length(self, name: str, rank: int) -> int:
        if self.tame and name not in _DIM_NAMES:
            return max(rank - 2, 1) if name in _POSITIVE and self.draw.chance(0.5) else self.draw.choice((rank, 2, 1))
        return self.draw.randint(0, 3)

    def _whole(self, name: str, rank: int) -> int:
        if not self.tame:
            return self.draw.whole()
        if name in _DIM_NAMES:
            return self.draw.randrange(-max(rank, 1), max(rank, 1))
        return self.draw.randint(1, 4) if name in _POSITIVE else self.draw.choice((0, 0, 1, 1, 2, -1, 3))

    def _open(self, name: str, rank: int) -> Any:
        if self.symbols and name not in _DIM_NAMES and self.draw.chance(0.2):
            return Expr(self.draw.expression(self.symbols))
        return self._whole(name, rank)

    def _real(self) -> Any:
        return self.draw.choice((0.0, 0.5, 1.0, 1e-5)) if self.tame else self.draw.real()

    def _number(self) -> Any:
        if self.tame:
            return self.draw.choice((0, 1, 2, -1, 0.5, 1.0, -0.0, True, float("inf")))
        return self.draw.choice((self.draw.whole, self.draw.real, self.draw.imaginary, lambda: self.draw.chance(0.5)))()
