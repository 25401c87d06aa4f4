"""The nodes that quantise a weight, which run once, and those that restore it in every run.

    before   y = linear(x, w)
    int8     q = quantize_per_channel(w, s, 0);  y = linear(x, dequantize_per_channel(q, s))
    int4     p = pack(quantize_per_channel_group(w, s, 0));  y = linear(x, dequantize_per_channel_group(unpack(p), s))
    fp8      q = to(w / s, float8_e4m3fn);  y = linear(x, convert_element_type.no_fuse(q) * s)

Two int4 values share a byte, the first in the low half, each plus 8 if it is signed. The operators that start a
restored weight, `dequantize_*` and `convert_element_type.no_fuse`, never become part of the prologue, so that the
quantised values are what stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from torch_ir.ir import Dtype, OpNode, TensorMeta
from torch_ir.passes.clean.same_layout import as_sizes
from torch_ir.quantization.layers import Kind
from torch_ir.quantization.recipe import FP8, Scheme
from torch_ir.rewrite import Builder

_Q = "quantized_decomposed."
CONVERT = f"{_Q}convert_element_type.no_fuse"
FP8_MAX = 448.0
LEAST_SCALE = 1e-12  # a channel of zeros needs a scale, too
FLOATS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Integers:
    """The integers that represent a weight: their dtype and range."""

    dtype: str
    low: int
    high: int

    @classmethod
    def of(cls, scheme: Scheme) -> Integers:
        """Return the integers of a scheme; symmetric ones omit the lowest, so that no largest weight is halfway."""
        if scheme.weight == "int8":
            return cls("int8", -127 if scheme.symmetric else -128, 127)
        return cls("int8", -7, 7) if scheme.symmetric else cls("uint8", 0, 15)

    @property
    def arguments(self) -> dict[str, object]:
        return {"quant_min": self.low, "quant_max": self.high, "dtype": Dtype(self.dtype)}


@dataclass(frozen=True)
class QuantizedWeight:
    """Quantised weight in the prologue: values, scales and zero points; symmetric groups have no zero points."""

    values: TensorMeta
    scales: TensorMeta
    zero_points: TensorMeta | None
    rows: tuple[int, ...]  # the shape of the quantised matrix, before packing
    axis: int  # of the channels, without groups


def objection(weight: TensorMeta, kind: Kind, scheme: Scheme) -> str:
    """Return why a weight cannot be quantised by a scheme, or ""."""
    sizes = [dim for dim in weight.shape if isinstance(dim, int)]
    if weight.dtype not in FLOATS:
        return f"its weight is {weight.dtype}"
    if weight.placement is not None:
        return "its weight is sharded; quantise before sharding"
    if len(sizes) < max(2, len(weight.shape)) or not prod(sizes):
        return "its weight is not a matrix of fixed size"
    length = _length(sizes, kind)
    if scheme.group and (length % scheme.group or (kind.channels == 1 and not kind.stacked)):
        return f"its channels of {length} elements do not divide into groups of {scheme.group}"
    if scheme.weight == "int4" and (length if kind.is_lookup else prod(sizes)) % 2:
        return "it has an odd number of elements, and two int4 values share a byte"
    return ""


def _length(sizes: list[int], kind: Kind) -> int:
    """Return the number of elements of one output channel."""
    return sizes[-2] if kind.stacked else prod(sizes) // sizes[kind.channels]


def quantized_bytes(weight: TensorMeta, kind: Kind, scheme: Scheme) -> int:
    """Return the bytes of a quantised weight: values, scales and zero points."""
    sizes = [int(dim) for dim in weight.shape]
    count = prod(sizes)
    scales = count // (scheme.group or _length(sizes, kind))
    values = count // 2 if scheme.weight == "int4" else count
    has_zeros = scheme.weight != FP8 and not (scheme.symmetric and (scheme.group or kind.is_lookup))
    return values + scales * (8 if has_zeros else 4)


def quantize_weight(g: Builder, weight: TensorMeta, kind: Kind, scheme: Scheme) -> QuantizedWeight:
    """Add the nodes that quantise a weight."""
    rows, axis = _as_rows(g, weight, kind, scheme)
    shape = tuple(int(dim) for dim in rows.shape)
    wide = g.cast(rows, "float32")
    if scheme.group:
        parts = g.op("aten.reshape.default", self=wide, shape=[shape[0], -1, scheme.group])
        summed = [2]
    else:
        parts, summed = wide, [dim for dim in range(len(shape)) if dim != axis]
    if scheme.weight == FP8:
        return _as_fp8(g, wide, parts, summed, shape, axis)
    integers = Integers.of(scheme)
    scales, zeros = _scales(g, parts, summed, integers, scheme.symmetric)
    if scheme.group:
        settings = {**integers.arguments, "group_size": scheme.group}
        values = g.op(
            f"{_Q}quantize_per_channel_group.default", input=wide, scales=scales, zero_points=zeros, **settings
        )
    else:
        settings = {**integers.arguments, "axis": axis}
        values = g.op(f"{_Q}quantize_per_channel.default", input=wide, scales=scales, zero_points=zeros, **settings)
    if scheme.weight == "int4":
        values = _packed(g, values)
    needs_zeros = not scheme.symmetric or not scheme.group  # Inductor and OpenVINO need zero points per channel
    return QuantizedWeight(values, scales, zeros if needs_zeros else None, shape, axis)


def restore_weight(g: Builder, kept: QuantizedWeight, weight: TensorMeta, kind: Kind, scheme: Scheme) -> TensorMeta:
    """Add the nodes that restore a weight in every run; return it."""
    out = Dtype(weight.dtype)
    if scheme.weight == FP8:
        values = g.op(CONVERT, input=kept.values, dtype=Dtype("float32"))
        rows = _grouped_product(g, values, kept, scheme)
        return _from_rows(g, g.cast(rows, weight.dtype), weight, kind, scheme)
    values = kept.values if scheme.weight == "int8" else _unpacked(g, kept.values, kept.rows, Integers.of(scheme))
    common = {"input": values, "scales": kept.scales, "zero_points": kept.zero_points, **Integers.of(scheme).arguments}
    if scheme.group:
        settings = {"group_size": scheme.group, "output_dtype": out}
        rows = g.op(f"{_Q}dequantize_per_channel_group.default", **common, **settings)
    else:
        rows = g.op(f"{_Q}dequantize_per_channel.default", **common, axis=kept.axis, out_dtype=out)
    return _from_rows(g, rows, weight, kind, scheme)


def restore_rows(g: Builder, node: OpNode, kept: QuantizedWeight, scheme: Scheme) -> TensorMeta:
    """Add the nodes that select rows of a quantised table and restore only these; return them."""
    weight, indices = node["weight"], node["indices"]
    length = kept.rows[1]
    group = scheme.group or length
    outer = as_sizes(indices.shape)

    def select(table: TensorMeta) -> TensorMeta:
        return g.op("aten.embedding.default", weight=table, indices=indices)

    def per_group(table: TensorMeta) -> TensorMeta:
        chosen = select(g.op("aten.reshape.default", self=table, shape=[kept.rows[0], -1]))
        return g.op("aten.unsqueeze.default", self=chosen, dim=-1)

    values = select(kept.values)
    if scheme.weight == FP8:
        values = g.op(CONVERT, input=values, dtype=Dtype("float32"))
    elif scheme.weight == "int4":
        values = _unpacked(g, values, (*indices.shape, length), Integers.of(scheme))
    parts = g.op("aten.reshape.default", self=values, shape=[*outer, length // group, group])
    scales = per_group(kept.scales)
    if scheme.weight == FP8:
        found = g.op("aten.mul.Tensor", self=parts, other=scales)
    else:
        zeros = g.op("aten.zeros.default", size=[1], dtype=Dtype("int32"))
        if not scheme.symmetric:
            assert kept.zero_points is not None  # made with the scales
            zeros = per_group(kept.zero_points)
        settings = {**Integers.of(scheme).arguments, "output_dtype": Dtype("float32")}
        found = g.op(f"{_Q}dequantize_per_token.default", input=parts, scales=scales, zero_points=zeros, **settings)
    found = g.cast(found, weight.dtype)
    return g.op("aten.reshape.default", self=found, shape=[*outer, length])


# -- layouts ----------------------------------------------------------------------------------------------------------


def _is_direct(weight: TensorMeta, kind: Kind, scheme: Scheme) -> bool:
    """Whether a weight is quantised in its own shape, along one dimension."""
    return not scheme.group and (len(weight.shape) == 2 or not kind.stacked)


def _as_rows(g: Builder, weight: TensorMeta, kind: Kind, scheme: Scheme) -> tuple[TensorMeta, int]:
    """Return a weight with one dimension of channels, and that dimension; groups need a matrix of channels."""
    if _is_direct(weight, kind, scheme):
        return weight, kind.channels % len(weight.shape)
    if kind.stacked:
        weight = g.op("aten.transpose.int", self=weight, dim0=-1, dim1=-2)
    channels = prod(int(dim) for dim in weight.shape[:-1]) if kind.stacked else weight.shape[0]
    shape = (channels, prod(int(dim) for dim in weight.shape) // int(channels))
    return weight if weight.shape == shape else g.op("aten.reshape.default", self=weight, shape=list(shape)), 0


def _from_rows(g: Builder, rows: TensorMeta, weight: TensorMeta, kind: Kind, scheme: Scheme) -> TensorMeta:
    """Return restored rows in the weight's own shape."""
    if _is_direct(weight, kind, scheme):
        return rows
    shape = list(weight.shape)
    if kind.stacked:
        shape[-2:] = shape[-1], shape[-2]
    if list(rows.shape) != shape:
        rows = g.op("aten.reshape.default", self=rows, shape=shape)
    return g.op("aten.transpose.int", self=rows, dim0=-1, dim1=-2) if kind.stacked else rows


def _grouped_product(g: Builder, values: TensorMeta, kept: QuantizedWeight, scheme: Scheme) -> TensorMeta:
    """Return values times their scales."""
    if scheme.group:
        parts = g.op("aten.reshape.default", self=values, shape=[kept.rows[0], -1, scheme.group])
        scaled = g.op("aten.mul.Tensor", self=parts, other=_along(g, kept.scales, (*kept.scales.shape, 1)))
        return g.op("aten.reshape.default", self=scaled, shape=list(kept.rows))
    shape = [size if dim == kept.axis else 1 for dim, size in enumerate(kept.rows)]
    return g.op("aten.mul.Tensor", self=values, other=_along(g, kept.scales, shape))


def _along(g: Builder, scales: TensorMeta, shape: Iterable[int | str]) -> TensorMeta:
    return g.op("aten.reshape.default", self=scales, shape=list(shape))


# -- values -----------------------------------------------------------------------------------------------------------


def _scales(
    g: Builder, parts: TensorMeta, summed: list[int], integers: Integers, symmetric: bool
) -> tuple[TensorMeta, TensorMeta]:
    """Return the scales and zero points of parts of a weight, one per part."""
    if symmetric:
        largest = g.op("aten.amax.default", self=g.op("aten.abs.default", self=parts), dim=summed)
        scales = scale_of(g, largest, (integers.high - integers.low) / 2)
        return scales, g.op("aten.zeros_like.default", self=scales, dtype=Dtype("int32"))
    lowest, highest = (g.op(f"aten.{name}.default", self=parts, dim=summed) for name in ("amin", "amax"))
    scales, zeros = scales_with_zeros(g, lowest, highest, integers)
    return scales, g.cast(zeros, "int32")


def scales_with_zeros(
    g: Builder, lowest: TensorMeta, highest: TensorMeta, integers: Integers
) -> tuple[TensorMeta, TensorMeta]:
    """Return the scales of ranges, each with 0, and the integers for 0, still as fractions."""
    high = g.op("aten.clamp_min.default", self=highest, min=0)
    low = g.op("aten.clamp_max.default", self=lowest, max=0)
    scales = scale_of(g, g.op("aten.sub.Tensor", self=high, other=low), integers.high - integers.low)
    shift = g.op("aten.round.default", self=g.op("aten.div.Tensor", self=low, other=scales))
    zeros = g.op("aten.neg.default", self=shift)
    if integers.low:
        zeros = g.op("aten.add.Scalar", self=zeros, other=integers.low)
    return scales, g.op("aten.clamp.default", self=zeros, min=integers.low, max=integers.high)


def scale_of(g: Builder, width: TensorMeta, steps: float) -> TensorMeta:
    """Return the width of a range divided by the number of its steps, never 0."""
    divided = g.op("aten.div.Scalar", self=width, other=steps)
    return g.op("aten.clamp_min.default", self=divided, min=LEAST_SCALE)


def _as_fp8(
    g: Builder, wide: TensorMeta, parts: TensorMeta, summed: list[int], shape: tuple[int, ...], axis: int
) -> QuantizedWeight:
    largest = g.op("aten.amax.default", self=g.op("aten.abs.default", self=parts), dim=summed, keepdim=True)
    spread = scale_of(g, largest, FP8_MAX)
    values = to_fp8(g, parts, spread)
    if parts is not wide:
        values = g.op("aten.reshape.default", self=values, shape=list(shape))
    kept = [dim for at, dim in enumerate(parts.shape) if at not in summed]
    return QuantizedWeight(values, _along(g, spread, kept), None, shape, axis)


def to_fp8(g: Builder, values: TensorMeta, scales: TensorMeta) -> TensorMeta:
    """Add the nodes that divide by scales and round to fp8; values beyond its range become its largest."""
    divided = g.op("aten.div.Tensor", self=values, other=scales)
    bounded = g.op("aten.clamp.default", self=divided, min=-FP8_MAX, max=FP8_MAX)
    return g.cast(bounded, FP8)


def _packed(g: Builder, values: TensorMeta) -> TensorMeta:
    """Return two int4 values per byte, row by row if a row has an even number of them."""
    wide = g.cast(values, "int32")  # runtimes lack arithmetic on single bytes
    if values.dtype == "int8":
        wide = g.op("aten.add.Scalar", self=wide, other=8)
    is_even = prod(int(dim) for dim in values.shape[1:]) % 2 == 0
    shape = [values.shape[0], -1, 2] if is_even else [-1, 2]
    low, high = g.ops("aten.unbind.int", self=g.op("aten.reshape.default", self=wide, shape=shape), dim=-1)
    both = g.op("aten.add.Tensor", self=low, other=g.op("aten.mul.Scalar", self=high, other=16))
    return g.cast(both, "uint8")


def _unpacked(g: Builder, packed: TensorMeta, shape: tuple[int | str, ...], integers: Integers) -> TensorMeta:
    """Return the int4 values of a packed tensor; exact in float, and runtimes lack shifts of bytes."""
    values = g.op(CONVERT, input=packed, dtype=Dtype("float32"))
    high = g.op("aten.floor.default", self=g.op("aten.mul.Scalar", self=values, other=1 / 16))
    low = g.op("aten.sub.Tensor", self=values, other=high, alpha=16)
    found = g.op("aten.stack.default", tensors=[low, high], dim=-1)
    if integers.dtype == "int8":
        found = g.op("aten.add.Scalar", self=found, other=-8)
    found = g.cast(found, integers.dtype)
    return g.op("aten.reshape.default", self=found, shape=as_sizes(shape))
