"""Reading elements at computed places: `stablehlo.gather`.

torch raises an error for places outside a dimension; StableHLO reads the nearest one inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim
from torch_ir.targets.stablehlo.operations import Builder, Value, common_shape, integers, is_static
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made
from torch_ir.targets.stablehlo.rules.rule_table import axis, lowers


def counted_from_start(hlo: Builder, index: Value, size: Dim) -> Value:
    """Return indices of type i64, with negative ones counted from the end."""
    index = hlo.convert(index, "int64")
    whole = hlo.size(size)
    is_negative = hlo.compare("LT", index, hlo.full(0, (), "int64"))
    return hlo.select(is_negative, hlo.pointwise("add", index, whole), index)


def joined(hlo: Builder, indices: Sequence[Value], shape: Sequence[Dim]) -> Value:
    """Return indices as vectors along a new last dimension."""
    columns = [hlo.reshape(hlo.broadcast(index, shape), (*shape, 1)) for index in indices]
    return columns[0] if len(columns) == 1 else hlo.concatenate(columns, len(shape), (*shape, len(columns)))


def places(indices: Sequence[Any], rank: int) -> list[int]:
    """Return the dimensions that are indexed; masks and other kinds are rejected."""
    for index in indices:
        if index is not None and index.dtype in ("bool", "uint8"):
            raise ConversionError("it is indexed by a mask")
    return [at for at, index in enumerate(indices) if index is not None]


def read(hlo: Builder, value: Value, dims: Sequence[int], start: Value, shape: Sequence[Dim], first: int) -> Value:
    """Read at vectors of indices into `dims`; dimensions of the indices begin at `first` in the result."""
    width = len(start.shape) - 1
    kept = [at for at in range(len(value.shape)) if at not in dims]
    offsets = [at if at < first else at + width for at in range(len(kept))]
    sizes = [1 if at in dims else size for at, size in enumerate(value.shape)]
    numbers = (
        f"offset_dims = [{_listed(offsets)}], collapsed_slice_dims = [{_listed(dims)}], "
        f"start_index_map = [{_listed(dims)}], index_vector_dim = {width}"
    )
    attrs = f"dimension_numbers = #stablehlo.gather<{numbers}>, indices_are_sorted = false"
    if is_static(sizes):
        listed = integers([int(size) for size in sizes])
        return hlo.emit("gather", [value, start], shape, value.dtype, f"{attrs}, slice_sizes = {listed}")
    return hlo.emit("dynamic_gather", [value, start, hlo.sizes_of(sizes)], shape, value.dtype, attrs)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(hlo: Builder, made: Made, self: Value, indices: Sequence[Value | None]) -> Value:
    dims = places(indices, len(self.shape))
    given = [one for one in indices if one is not None]
    shape = common_shape(*(one.shape for one in given))
    wrapped = [counted_from_start(hlo, one, self.shape[dim]) for one, dim in zip(given, dims, strict=True)]
    is_adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return read(hlo, self, dims, joined(hlo, wrapped, shape), made[0].shape, dims[0] if is_adjacent else 0)


@lowers("aten.index_select.default")
def index_select(hlo: Builder, made: Made, self: Value, dim: int, index: Value) -> Value:
    if not self.shape:
        return hlo.reshape(self, made[0].shape)
    dim = axis(dim, len(self.shape))
    listed = hlo.reshape(hlo.convert(index, "int64"), (index.shape[0] if index.shape else 1,))
    return read(hlo, self, [dim], joined(hlo, [listed], listed.shape), made[0].shape, dim)


@lowers("aten.embedding.default")
def embedding(hlo: Builder, made: Made, weight: Value, indices: Value, **_: Any) -> Value:
    start = joined(hlo, [hlo.convert(indices, "int64")], indices.shape)
    return read(hlo, weight, [0], start, made[0].shape, 0)


def every_place(hlo: Builder, index: Value, dim: int) -> Value:
    """Return full vectors of indices: `index` in one dimension, the own place in the others."""
    index = hlo.convert(index, "int64")
    columns = [index if at == dim else hlo.iota(index.shape, at) for at in range(len(index.shape))]
    return joined(hlo, columns, index.shape)


@lowers("aten.gather.default")
def gather(hlo: Builder, made: Made, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if not self.shape:
        return hlo.broadcast(self, made[0].shape)
    if not index.shape:
        index = hlo.reshape(index, (1,))
    start = every_place(hlo, index, axis(dim, len(self.shape)))
    found = read(hlo, self, range(len(self.shape)), start, index.shape, 0)
    return hlo.reshape(found, made[0].shape)
