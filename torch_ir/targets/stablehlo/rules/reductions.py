"""Reductions: sums, products, extrema with their places, moments, and running totals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from torch_ir.errors import ConversionError
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.targets.stablehlo.element_types import is_float
from torch_ir.targets.stablehlo.operations import Builder, Kind, Value, integers, is_static
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, only_real
from torch_ir.targets.stablehlo.rules.rule_table import Rule, add, axes, axis, lowers

_BOUNDS = {"maximum": -1, "minimum": 1}


def lowest(name: str, dtype: str) -> Any:
    """Return the number that an extremum of any number replaces."""
    if dtype == "bool":
        return name == "minimum"
    if is_float(dtype):
        return _BOUNDS[name] * float("inf")
    limits = torch.iinfo(TORCH_DTYPES[dtype])
    return limits.min if name == "maximum" else limits.max


def total(hlo: Builder, value: Value, dims: Sequence[int]) -> Value:
    return hlo.reduce(value, dims, "add", 0)


def _count(hlo: Builder, value: Value, dims: Sequence[int]) -> Value:
    """Return how many elements a reduction joins, as a number of the value's dtype."""
    sizes = [value.shape[dim] for dim in dims]
    if is_static(sizes):
        return hlo.full(prod(int(size) for size in sizes), (), value.dtype)
    return hlo.convert(hlo.size(" * ".join(f"({size})" for size in sizes)), value.dtype)


def _reduced(hlo: Builder, made: Made, value: Value) -> Value:
    return hlo.reshape(hlo.convert(value, made[0].dtype), made[0].shape)


def _sum(hlo: Builder, made: Made, self: Value, dim: Any = None, **_: Any) -> Value:
    value = hlo.wide(hlo.convert(self, made[0].dtype))
    return _reduced(hlo, made, total(hlo, value, axes(dim, len(self.shape))))


def _mean(hlo: Builder, made: Made, self: Value, dim: Any = None, **_: Any) -> Value:
    value = hlo.wide(hlo.convert(self, made[0].dtype))
    dims = axes(dim, len(self.shape))
    return _reduced(hlo, made, hlo.pointwise("divide", total(hlo, value, dims), _count(hlo, value, dims)))


def _product(hlo: Builder, made: Made, self: Value, dim: Any = None, **_: Any) -> Value:
    value = hlo.wide(hlo.convert(self, made[0].dtype))
    return _reduced(hlo, made, hlo.reduce(value, axes(dim, len(self.shape)), "multiply", 1))


def _extremum(name: str, hlo: Builder, made: Made, self: Value, dim: Any = None, **_: Any) -> Value:
    start = lowest(name, self.dtype)
    return _reduced(hlo, made, hlo.reduce(self, axes(dim, len(self.shape)), name, start))


def _truth(name: str, hlo: Builder, made: Made, self: Value, dim: Any = None, **_: Any) -> Value:
    value = hlo.convert(self, "bool")
    if dim == []:  # unlike for other reductions, no dimension
        return value
    return _reduced(hlo, made, hlo.reduce(value, axes(dim, len(self.shape)), name, name == "and"))


_REDUCTIONS: dict[tuple[str, ...], Rule] = {
    ("sum.default", "sum.dim_IntList"): _sum,
    ("mean.default", "mean.dim"): _mean,
    ("prod.default", "prod.dim_int"): _product,
    ("amax.default", "max.default"): partial(_extremum, "maximum"),
    ("amin.default", "min.default"): partial(_extremum, "minimum"),
    ("any.default", "any.dim", "any.dims"): partial(_truth, "or"),
    ("all.default", "all.dim", "all.dims"): partial(_truth, "and"),
}
for _names, _rule in _REDUCTIONS.items():
    for _name in _names:
        add(f"aten.{_name}", _rule)


# -- extrema with their places ----------------------------------------------------------------------------------------


def comes_first(hlo: Builder, left: Value, right: Value, direction: str) -> Value:
    """Whether an element precedes another where the largest (GT) or the smallest (LT) is wanted; NaN is the largest."""
    before = hlo.compare(direction, left, right)
    if not is_float(left.dtype):
        return before
    odd, even = (left, right) if direction == "GT" else (right, left)
    is_nan, is_number = hlo.compare("NE", odd, odd), hlo.compare("EQ", even, even)
    return hlo.pointwise("or", before, hlo.pointwise("and", is_nan, is_number))


def place_of_extremum(hlo: Builder, value: Value, dim: int, name: str) -> tuple[Value, Value]:
    """Return the extremum along a dimension and its first place; a NaN is the extremum for both directions."""
    shape = tuple(size for at, size in enumerate(value.shape) if at != dim)
    kinds = [Kind((), value.dtype), Kind((), "int64")]

    def better(one: Value, one_at: Value, other: Value, other_at: Value) -> list[Value]:
        is_better = hlo.compare("GT" if name == "maximum" else "LT", one, other)
        is_equal = hlo.compare("EQ", one, other)
        if is_float(value.dtype):
            one_nan, other_nan = (hlo.compare("NE", each, each) for each in (one, other))
            is_better = hlo.pointwise("or", is_better, hlo.pointwise("and", one_nan, hlo.pointwise("not", other_nan)))
            is_equal = hlo.pointwise("or", is_equal, hlo.pointwise("and", one_nan, other_nan))
        is_earlier = hlo.pointwise("and", is_equal, hlo.compare("LT", one_at, other_at))
        chosen = hlo.pointwise("or", is_better, is_earlier)
        return [hlo.select(chosen, one, other), hlo.select(chosen, one_at, other_at)]

    last = value.shape[dim]
    after = hlo.full(2**62, (), "int64")  # after every place, so that an element always replaces it
    operands = [value, hlo.iota(value.shape, dim), hlo.full(lowest(name, value.dtype), (), value.dtype), after]
    if last == 0:
        raise ConversionError("it reduces a dimension without elements")
    results = [Kind(shape, value.dtype), Kind(shape, "int64")]
    attrs = f"dimensions = {integers([dim])}"
    found = hlo.emit_all("reduce", operands, results, attrs, [([*kinds, *kinds], better)])
    return found[0], found[1]


def _place(name: str, hlo: Builder, made: Made, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    if not self.shape:
        return hlo.full(0, (), "int64")
    if dim is None:
        if not is_static(self.shape):
            raise ConversionError("it flattens dynamic sizes")
        self = hlo.reshape(self, (prod(int(size) for size in self.shape),))
        dim = 0
    return hlo.reshape(place_of_extremum(hlo, self, axis(dim, len(self.shape)), name)[1], made[0].shape)


def _with_place(name: str, hlo: Builder, made: Made, self: Value, dim: int, keepdim: bool = False) -> list[Value]:
    if not self.shape:
        return [self, hlo.full(0, (), "int64")]
    found = place_of_extremum(hlo, self, axis(dim, len(self.shape)), name)
    return [hlo.reshape(value, tensor.shape) for value, tensor in zip(found, made, strict=True)]


for _short, _long in {"max": "maximum", "min": "minimum"}.items():
    add(f"aten.arg{_short}.default", partial(_place, _long))
    add(f"aten.{_short}.dim", partial(_with_place, _long))


# -- moments ----------------------------------------------------------------------------------------------------------


def _moments(hlo: Builder, self: Value, dim: Any, correction: Any) -> tuple[Value, Value]:
    """Return variance and mean, without the reduced dimensions."""
    value, dims = hlo.wide(only_real(self)), axes(dim, len(self.shape))
    count = _count(hlo, value, dims)
    mean = hlo.pointwise("divide", total(hlo, value, dims), count)
    kept = [at for at in range(len(value.shape)) if at not in dims]
    gaps = hlo.pointwise("subtract", value, hlo.broadcast(mean, value.shape, kept))
    squares = total(hlo, hlo.pointwise("multiply", gaps, gaps), dims)
    lost = hlo.full(1 if correction is None else correction, (), value.dtype)
    degrees = hlo.pointwise("maximum", hlo.pointwise("subtract", count, lost), hlo.full(0, (), value.dtype))
    return hlo.pointwise("divide", squares, degrees), mean


def _spread(
    is_root: bool, hlo: Builder, made: Made, self: Value, dim: Any = None, correction: Any = None,
    unbiased: bool = True, **_: Any,
) -> Value:  # fmt: skip
    """Return the variance, or its root."""
    variance = _moments(hlo, self, dim, int(unbiased) if correction is None else correction)[0]
    return _reduced(hlo, made, hlo.pointwise("sqrt", variance) if is_root else variance)


for _overload in ("correction", "dim", "default"):
    add(f"aten.var.{_overload}", partial(_spread, False))
    add(f"aten.std.{_overload}", partial(_spread, True))


@lowers("aten.var_mean.correction")
def variance_and_mean(
    hlo: Builder, made: Made, self: Value, dim: Any = None, correction: Any = None, **_: Any
) -> list[Value]:
    found = _moments(hlo, self, dim, correction)
    return [
        hlo.reshape(hlo.convert(value, tensor.dtype), tensor.shape) for value, tensor in zip(found, made, strict=True)
    ]


# -- running totals ---------------------------------------------------------------------------------------------------


def _running(name: str, start: int, hlo: Builder, made: Made, self: Value, dim: int, **_: Any) -> Value:
    """Double the length of the totals until it is that of the dimension: one pad and one operator for each step."""
    value = hlo.wide(hlo.convert(self, made[0].dtype))
    if value.shape:
        dim = axis(dim, len(value.shape))
        size, rank = value.shape[dim], len(value.shape)
        if isinstance(size, str):
            raise ConversionError("the running total has a dynamic length")
        reach = 1
        while reach < size:
            low = [reach if at == dim else 0 for at in range(rank)]
            fill = hlo.full(start, (), value.dtype)
            moved = hlo.pad(value, fill, low, [-one for one in low], [0] * rank, value.shape)
            value = hlo.pointwise(name, value, moved)
            reach *= 2
    return hlo.convert(value, made[0].dtype)


add("aten.cumsum.default", partial(_running, "add", 0))
add("aten.cumprod.default", partial(_running, "multiply", 1))
