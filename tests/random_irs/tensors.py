"""Tensors of every dtype and rank, and weights of every kind, some with their values."""

import math
from collections.abc import Iterable, Sequence

from tests.random_irs.draws import Draw
from torch_ir.ir import Dim, Param, TensorMeta
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.tensor import INDEX, PARAM_KINDS, STACK
from torch_ir.ops.torch_types import TORCH_DTYPES

_TAME = ("float32", "float32", "float32", "float64", "bfloat16", "float16", "int64", "int64", "int32", "uint8", "bool",
         "complex64")  # fmt: skip
_SIZES = (0, 1, 1, 2, 2, 3, 4, 5, 8)
_LARGE_SIZES = (2**31, 2**33)
_PLACEMENTS = ("replicate", "partial(sum)", "partial(avg)", "partial(min)", "partial(max)", "partial(product)")
_BEYOND_INLINE = (1 << 16) + 8  # bytes of a constant in a side file


class Tensors:
    """Tensors over some symbols and on some mesh; tame ones are such that torch can compute with them."""

    def __init__(self, draw: Draw, symbols: list[str], axes: int, *, tame: bool) -> None:
        self.draw, self.symbols, self.axes, self.tame = draw, symbols, axes, tame

    def any(self, name: str) -> TensorMeta:
        """A tensor of any shape and dtype."""
        shape = self.shape()
        return TensorMeta(name, shape, self.dtype(), stride=self._stride(shape), placement=self._placement(len(shape)))

    def dtype(self) -> str:
        if self.tame:
            return self.draw.choice(_TAME if self.draw.chance(0.9) else sorted(TORCH_DTYPES))
        return self.draw.choice(_TAME if self.draw.chance(0.3) else sorted(DTYPES))

    def shape(self) -> list[Dim]:
        if self.tame:
            rank = self.draw.choice((0, 1, 2, 2, 2, 3, 3, 4, 4, 5))
            return [self._size() for _ in range(rank)]
        shape = [self._size() for _ in range(self.draw.randint(0, 6))]
        if shape and self.draw.chance(0.1):
            shape[0] = self.draw.choice(_LARGE_SIZES)
        return shape

    def weight(self, name: str, keys: Sequence[str]) -> TensorMeta:
        """Draw a weight with these keys; constants and temporary buffers mostly have values."""
        kind = self.draw.choice(PARAM_KINDS)
        has_values = self.draw.chance(0.8 if kind in ("constant", "temporary") else 0.1)
        shape: list[Dim] = [self.draw.choice(_SIZES) for _ in range(self.draw.randint(0, 4))]
        data = self.data(shape, self.dtype()) if has_values else None
        if data is None:
            made = self.any(name)
        else:
            made = TensorMeta(name, data.shape, data.dtype, placement=self._placement(len(data.shape)))
        if kind == STACK:  # one key, with a mark for the number of a member
            is_stack = data is None and bool(made.shape) and made.shape[0] in range(1, 1000)
            kind, keys = (kind, [f"{keys[0].replace(INDEX, '_')[:-1]}{INDEX}"]) if is_stack else ("parameter", keys)
        made.param = Param(tuple(keys), kind, data)
        return made

    def data(self, shape: Sequence[Dim], dtype: str) -> TensorData:
        """Random bytes; a few constants are too large to stay in the text."""
        whole = tuple(dim for dim in shape if isinstance(dim, int))
        if self.draw.chance(0.15):
            whole = (_BEYOND_INLINE // DTYPES[dtype],)
        count = math.prod(whole) * DTYPES[dtype]
        raw = self.draw.randbytes(count)
        return TensorData(whole, dtype, bytes(byte & 1 for byte in raw) if dtype == "bool" else raw)

    def _size(self) -> Dim:
        if self.symbols and self.draw.chance(0.15):
            return self.draw.expression(self.symbols)
        return self.draw.choice(_SIZES)

    def _stride(self, shape: Sequence[Dim]) -> list[Dim] | None:
        """Mostly none; tame ones are those of a permuted tensor."""
        if not shape or self.draw.chance(0.85) or (self.tame and not all(isinstance(dim, int) for dim in shape)):
            return None
        if not self.tame:
            return [self._size() for _ in shape]
        order = self.draw.sample(range(len(shape)), len(shape))
        steps: list[Dim] = [0] * len(shape)
        step = 1
        for place in order:
            steps[place] = step
            step *= max(int(shape[place]), 1)
        return steps

    def _placement(self, rank: int) -> list[str] | None:
        """Return a placement on each mesh axis, if there is a mesh; optional for internal tensors."""
        if not self.axes or self.draw.chance(0.3):
            return None
        return self._placed(rank)

    def place(self, tensors: Iterable[TensorMeta]) -> None:
        """Set the placements of tensors that callers see."""
        for tensor in tensors:
            if self.axes and tensor.placement is None:
                tensor.placement = tuple(self._placed(len(tensor.shape)))

    def _placed(self, rank: int) -> list[str]:
        shards = [f"shard({dim})" for dim in range(rank)]
        return [self.draw.choice((*_PLACEMENTS, *shards)) for _ in range(self.axes)]
