"""Pooling: windows that are reduced."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from functools import partial
from math import inf, prod
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim, TensorData
from torch_ir.passes.weights.affine import each
from torch_ir.targets.stablehlo.operations import Builder, Kind, Value, integers
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made
from torch_ir.targets.stablehlo.rules.reductions import lowest, total
from torch_ir.targets.stablehlo.rules.rule_table import add

_MOST_PLACES = 1 << 20  # numbers in the text, by which averages are divided
_MOST_SPANS = 1 << 12  # of unequal lengths, each of which is a slice and a reduction


def _static(size: Dim, most: float = inf) -> int:
    if isinstance(size, str):
        raise ConversionError("it pools a dimension with a dynamic size")
    if size > most:
        raise ConversionError(f"it pools into {size} places, more than {most}")
    return size


def _windows(
    hlo: Builder, value: Value, name: str, start: Any, sizes: Sequence[int], steps: Sequence[int], gaps: Sequence[int],
    low: Sequence[int], shape: Sequence[Dim],
) -> Value:  # fmt: skip
    """Reduce windows of the last dimensions; padding after them is as much as the result's shape needs."""
    count, ahead = len(sizes), len(value.shape) - len(sizes)
    pads = [[0, 0]] * ahead
    for at in range(count):
        given, wanted = _static(value.shape[ahead + at]), _static(shape[ahead + at])
        reach = (wanted - 1) * steps[at] + gaps[at] * (sizes[at] - 1) + 1
        pads.append([low[at], reach - given - low[at]])
    listed = ", ".join(f"[{one}, {other}]" for one, other in pads)
    lists = {"window_dimensions": sizes, "window_strides": steps, "window_dilations": gaps}
    parts = [f"{key} = {integers([*([1] * ahead), *given])}" for key, given in lists.items()]
    parts.append(f"padding = dense<[{listed}]> : tensor<{len(pads)}x2xi64>")
    scalar = Kind((), value.dtype)
    region = ([scalar, scalar], lambda left, right: [hlo.pointwise(name, left, right)])
    operands = [value, hlo.full(start, (), value.dtype)]
    return hlo.emit_all("reduce_window", operands, [Kind(tuple(shape), value.dtype)], ", ".join(parts), [region])[0]


def _max_pool(
    count: int, hlo: Builder, made: Made, self: Value, kernel_size: Any, stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Value:  # fmt: skip
    sizes = each(kernel_size, count)
    steps = each(stride, count) if stride else sizes
    gaps, pads, start = each(dilation, count), each(padding, count), lowest("maximum", self.dtype)
    return _windows(hlo, self, "maximum", start, sizes, steps, gaps, pads, made[0].shape)


def _max_pool_with_places(count: int, hlo: Builder, made: Made, **arguments: Any) -> list[Value]:
    if len(made) > 1 and made[1].consumers:
        raise ConversionError("the places of its maxima are used")
    value = _max_pool(count, hlo, made, **arguments)
    return [value, *(hlo.full(0, tensor.shape, tensor.dtype) for tensor in made[1:])]


def _avg_pool(
    count: int, hlo: Builder, made: Made, self: Value, kernel_size: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    sizes, pads = each(kernel_size, count), each(padding, count)
    steps = each(stride, count) if stride else sizes
    shape, given = made[0].shape, self.shape[len(self.shape) - count :]
    value = _windows(hlo, hlo.wide(self), "add", 0, sizes, steps, [1] * count, pads, shape)
    counts = []
    for places, step, size, pad, whole in zip(shape[len(shape) - count :], steps, sizes, pads, given, strict=True):
        edge = pad if count_include_pad else 0
        reach, lows = _static(whole) + edge, (at * step - pad for at in range(_static(places, _MOST_PLACES)))
        counts.append([min(low + size, reach) - max(low, -edge) for low in lows])
    return hlo.convert(_divided(hlo, value, [[divisor_override]] if divisor_override else counts), made[0].dtype)


def _divided(hlo: Builder, value: Value, counts: Sequence[Sequence[int]]) -> Value:
    """Divide the last dimensions by numbers that depend on the place: products of one for each dimension."""
    if all(len(set(column)) <= 1 for column in counts):
        return hlo.pointwise("divide", value, hlo.like(value, prod(column[0] for column in counts if column)))
    number = _static(prod(map(len, counts)), _MOST_PLACES)
    raw = struct.pack(f"<{number}d", *map(prod, itertools.product(*counts)))
    divisors = hlo.convert(hlo.literal(TensorData(tuple(map(len, counts)), "float64", raw)), value.dtype)
    return hlo.pointwise("divide", value, hlo.broadcast(divisors, value.shape))


def _adaptive(name: str, count: int, hlo: Builder, made: Made, self: Value, output_size: Any) -> Value:
    """Reduce one dimension after the other, each to its own number of nearly equal spans."""
    value, ahead = hlo.wide(self) if name == "add" else self, len(self.shape) - count
    counts: list[list[int]] = []
    for dim in range(ahead, len(self.shape)):
        size, wanted = _static(value.shape[dim]), _static(made[0].shape[dim])
        _static(wanted, _MOST_SPANS if wanted and size % wanted else _MOST_PLACES)
        spans = [(at * size // wanted, -((-(at + 1) * size) // wanted)) for at in range(wanted)]
        counts.append([high - low for low, high in spans])
        value = _spans(hlo, value, dim, spans, name)
    if name == "add":
        value = _divided(hlo, value, counts)
    return hlo.convert(value, made[0].dtype)


def _spans(hlo: Builder, value: Value, dim: int, spans: Sequence[tuple[int, int]], name: str) -> Value:
    """Reduce spans of a dimension; equal spans side by side are one window."""
    size = spans[0][1]
    start = 0 if name == "add" else lowest(name, value.dtype)
    shape = [len(spans) if at == dim else whole for at, whole in enumerate(value.shape)]
    if all(span == (at * size, (at + 1) * size) for at, span in enumerate(spans)):
        ones = [1] * (len(value.shape) - dim)
        windows = [size, *ones[1:]]
        return _windows(hlo, value, name, start, windows, windows, ones, [0] * len(ones), shape)
    parts = []
    for first, last in spans:
        part = hlo.slice_dim(value, dim, first, last, last - first)
        reduced = total(hlo, part, [dim]) if name == "add" else hlo.reduce(part, [dim], name, start)
        parts.append(hlo.reshape(reduced, [1 if at == dim else whole for at, whole in enumerate(value.shape)]))
    return hlo.concatenate(parts, dim, shape)


for _count in (1, 2, 3):
    add(f"aten.max_pool{_count}d.default", partial(_max_pool, _count))
    add(f"aten.max_pool{_count}d_with_indices.default", partial(_max_pool_with_places, _count))
    add(f"aten.avg_pool{_count}d.default", partial(_avg_pool, _count))
    add(f"aten.adaptive_avg_pool{_count}d.default", partial(_adaptive, "add", _count))
for _count in (2, 3):
    add(f"aten._adaptive_avg_pool{_count}d.default", partial(_adaptive, "add", _count))
