"""Storage of cache entries: in the model's dtype, or as int8 or fp8 with a scale per token and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch_ir.ir import TensorMeta
from torch_ir.rewrite import Builder

_LEAST = 1e-12  # of a scale, for entries that are all zero


@dataclass(frozen=True)
class Storage:
    """A dtype of the cache, and its largest number if entries are scaled to it; `dtype` None is the model's."""

    dtype: str | None = None
    largest: float = 0.0
    is_rounded: bool = False  # to whole numbers; a cast to fp8 rounds anyway

    def parts(self, dtype: str, size: int) -> dict[str, tuple[str, int]]:
        """Return the dtype and the last size of each tensor that keys or values are stored in, by suffix."""
        if self.dtype is None:
            return {"": (dtype, size)}
        return {"": (self.dtype, size), "_scale": ("float32", 1)}

    def encode(self, g: Builder, entries: TensorMeta) -> dict[str, TensorMeta]:
        """Return what is stored for entries whose last dimension is one head of one token."""
        if self.dtype is None:
            return {"": entries}
        wide = g.cast(entries, "float32")
        largest = g.op("aten.amax.default", self=g.op("aten.abs.default", self=wide), dim=[-1], keepdim=True)
        scale = g.op("aten.div.Tensor", self=largest, other=self.largest)
        scale = g.op("aten.clamp.default", self=scale, min=_LEAST)
        scaled = g.op("aten.div.Tensor", self=wide, other=scale)
        if self.is_rounded:
            scaled = g.op("aten.round.default", self=scaled)
        # the division may round to a little more than the largest number
        scaled = g.op("aten.clamp.default", self=scaled, min=-self.largest, max=self.largest)
        return {"": g.cast(scaled, self.dtype), "_scale": scale}

    def decode(self, g: Builder, stored: Mapping[str, TensorMeta], dtype: str) -> TensorMeta:
        """Return the entries again, in the dtype of the model."""
        if self.dtype is None:
            return stored[""]
        wide = g.op("aten.mul.Tensor", self=g.cast(stored[""], "float32"), other=stored["_scale"])
        return g.cast(wide, dtype)


STORAGES = {
    None: Storage(),
    "int8": Storage("int8", 127.0, is_rounded=True),
    "float8_e4m3fn": Storage("float8_e4m3fn", 448.0),
}
