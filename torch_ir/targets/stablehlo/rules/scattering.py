"""Writing elements at computed places: `stablehlo.scatter`.

torch raises an error for places outside a dimension; StableHLO ignores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.targets.stablehlo.element_types import is_integer
from torch_ir.targets.stablehlo.operations import Builder, Kind, Value, common_shape, is_static
from torch_ir.targets.stablehlo.rules.division import floor_quotient
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, operand
from torch_ir.targets.stablehlo.rules.gathering import counted_from_start, every_place, joined, places
from torch_ir.targets.stablehlo.rules.reductions import lowest
from torch_ir.targets.stablehlo.rules.rule_table import add, axis, lowers

_REDUCERS = {
    "sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply", "amax": "maximum", "amin": "minimum",
}  # fmt: skip


def written(
    hlo: Builder, value: Value, dims: Sequence[int], start: Value, updates: Value, first: int, reducer: str | None
) -> Value:
    """Write updates at vectors of indices into `dims`, whose own dimensions begin at `first` in the updates.

    Without a reducer, an update replaces the element.
    """
    width = len(start.shape) - 1
    kept = [at for at in range(len(value.shape)) if at not in dims]
    windows = [at if at < first else at + width for at in range(len(kept))]
    lists = {"update_window_dims": windows, "inserted_window_dims": dims, "scatter_dims_to_operand_dims": dims}
    listed = ", ".join(f"{name} = [{', '.join(map(str, given))}]" for name, given in lists.items())
    attrs = (
        f"scatter_dimension_numbers = #stablehlo.scatter<{listed}, index_vector_dim = {width}>, "
        "indices_are_sorted = false, unique_indices = false"
    )
    scalar = Kind((), value.dtype)

    def combined(old: Value, new: Value) -> list[Value]:
        return [new if reducer is None else hlo.pointwise(reducer, old, new)]

    operands, results = [value, start, updates], [Kind(value.shape, value.dtype)]
    return hlo.emit_all("scatter", operands, results, attrs, [([scalar, scalar], combined)])[0]


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    hlo: Builder, made: Made, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    if _is_mask(indices):
        mask = indices[0]
        assert mask is not None
        return _masked(hlo, self, mask, values, accumulate)
    dims = places(indices, len(self.shape))
    given = [one for one in indices if one is not None]
    shape = common_shape(*(one.shape for one in given))
    wrapped = [counted_from_start(hlo, one, self.shape[dim]) for one, dim in zip(given, dims, strict=True)]
    first = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    rest = [size for at, size in enumerate(self.shape) if at not in dims]
    wanted = [*rest[:first], *shape, *rest[first:]]
    updates = hlo.broadcast(_trimmed(hlo, hlo.convert(values, self.dtype), len(wanted)), wanted)
    start = joined(hlo, wrapped, shape)
    return written(hlo, self, dims, start, updates, first, "add" if accumulate else None)


def _trimmed(hlo: Builder, value: Value, rank: int) -> Value:
    """Drop leading dimensions of size 1 that are too many."""
    more = len(value.shape) - rank
    return hlo.reshape(value, value.shape[more:]) if more > 0 else value


def _is_mask(indices: Sequence[Value | None]) -> bool:
    first = indices[0] if indices else None
    return first is not None and first.dtype == "bool" and all(one is None for one in indices[1:])


def _masked(hlo: Builder, self: Value, mask: Value, values: Value, accumulate: bool) -> Value:
    """Write one value wherever a mask of the first dimensions is true."""
    if any(size != 1 for size in values.shape):
        raise ConversionError("it writes as many values as a mask selects")
    chosen = hlo.broadcast(mask, self.shape, range(len(mask.shape)))
    new = hlo.broadcast(hlo.reshape(hlo.convert(values, self.dtype), ()), self.shape)
    return hlo.select(chosen, hlo.pointwise("add", self, new) if accumulate else new, self)


def _rows(
    reducer: str | None, hlo: Builder, made: Made, self: Value, dim: int, index: Value, source: Any = None,
    alpha: Any = 1, value: Any = None,
) -> Value:  # fmt: skip
    """Write whole slices of a dimension."""
    if not self.shape or not index.shape:
        raise ConversionError("it writes to a scalar")
    dim = axis(dim, len(self.shape))
    shape = [*self.shape[:dim], index.shape[0], *self.shape[dim + 1 :]]
    updates = hlo.broadcast(operand(hlo, value if source is None else source, self.dtype), shape)
    if alpha != 1:
        updates = hlo.pointwise("multiply", updates, hlo.like(updates, alpha))
    start = joined(hlo, [counted_from_start(hlo, index, self.shape[dim])], index.shape)
    return written(hlo, self, [dim], start, updates, dim, reducer)


add("aten.index_add.default", partial(_rows, "add"))
add("aten.index_copy.default", partial(_rows, None))
add("aten.index_fill.int_Scalar", partial(_rows, None))
add("aten.index_fill.int_Tensor", partial(_rows, None))


def _scatter(hlo: Builder, self: Value, dim: int, index: Value, updates: Value, reducer: str | None) -> Value:
    """Write single elements; updates beyond the shape of the indices are not used."""
    if not self.shape or not index.shape:
        raise ConversionError("it writes to a scalar")
    if updates.shape != index.shape:
        if not is_static([*updates.shape, *index.shape]):
            raise ConversionError("the updates and the indices have different dynamic sizes")
        rank = len(index.shape)
        updates = hlo.slice(updates, [0] * rank, index.shape, [1] * rank, index.shape)
    start = every_place(hlo, index, axis(dim, len(self.shape)))
    return written(hlo, self, range(len(self.shape)), start, updates, 0, reducer)


@lowers("aten.scatter.src", "aten.scatter.reduce")
def scatter(hlo: Builder, made: Made, self: Value, dim: int, index: Value, src: Value, reduce: str = "") -> Value:
    return _scatter(hlo, self, dim, index, hlo.convert(src, self.dtype), _REDUCERS.get(reduce))


add("aten.scatter_add.default", partial(scatter, reduce="add"))


@lowers("aten.scatter.value", "aten.scatter.value_reduce")
def scatter_value(hlo: Builder, made: Made, self: Value, dim: int, index: Value, value: Any, reduce: str = "") -> Value:
    updates = hlo.broadcast(operand(hlo, value, self.dtype), index.shape)
    return _scatter(hlo, self, dim, index, updates, _REDUCERS.get(reduce))


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    hlo: Builder, made: Made, self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True
) -> Value:
    """Combine updates with elements, or with each other alone; a mean divides the sum by how many there are."""
    src = hlo.convert(src, self.dtype)
    ones = hlo.full(1, index.shape, "int64")
    start = self
    counts = hlo.full(1 if include_self else 0, self.shape, "int64")
    if reduce == "mean" or not include_self:
        counts = _scatter(hlo, counts, dim, index, ones, "add")
    name = "add" if reduce == "mean" else _REDUCERS[reduce]
    if not include_self:
        neutral = {"add": 0, "multiply": 1}
        empty = hlo.like(self, neutral[name] if name in neutral else lowest(name, self.dtype))
        start = hlo.select(hlo.compare("GT", counts, hlo.like(counts, 0)), empty, self)
    found = _scatter(hlo, start, dim, index, src, name)
    if reduce != "mean":
        return found
    divisor = hlo.convert(hlo.pointwise("maximum", counts, hlo.like(counts, 1)), self.dtype)
    return floor_quotient(hlo, found, divisor) if is_integer(self.dtype) else hlo.pointwise("divide", found, divisor)
