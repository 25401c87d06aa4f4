"""Reshapes, transpositions, slices, joins and pads: operators that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim
from torch_ir.targets.stablehlo.element_types import is_complex
from torch_ir.targets.stablehlo.operations import Builder, Value, integers, is_static
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, operand
from torch_ir.targets.stablehlo.rules.rule_table import add, axes, axis, lowers

# -- the same elements in another shape -------------------------------------------------------------------------------


def _reshape(hlo: Builder, made: Made, self: Value, **_: Any) -> Value:
    return hlo.reshape(self, made[0].shape)


for _op in (
    "view.default", "reshape.default", "_unsafe_view.default", "view_copy.default", "flatten.using_ints",
    "unflatten.int", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "view_as.default",
    "reshape_as.default", "_reshape_alias.default", "squeeze_copy.dims", "unsqueeze_copy.default", "item.default",
    "_local_scalar_dense.default", "atleast_1d.default", "atleast_2d.default", "atleast_3d.default",
):  # fmt: skip
    add(f"aten.{_op}", _reshape)


@lowers("aten.permute.default", "aten.permute_copy.default")
def permute(hlo: Builder, made: Made, self: Value, dims: Sequence[int]) -> Value:
    return hlo.transpose(self, [axis(dim, len(self.shape)) for dim in dims])


@lowers("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(hlo: Builder, made: Made, self: Value, **dims: int) -> Value:
    order = list(range(len(self.shape)))
    if order:
        one, other = (axis(dim, len(order)) for dim in dims.values())
        order[one], order[other] = order[other], order[one]
    return hlo.transpose(self, order)


@lowers("aten.t.default", "aten.numpy_T.default")
def reverse_dims(hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.transpose(self, list(range(len(self.shape)))[::-1])


@lowers("aten.repeat.default")
def repeat(hlo: Builder, made: Made, self: Value, repeats: Sequence[Dim]) -> Value:
    """Broadcast along a new dimension before each, and join the two."""
    shape: list[Dim] = [*([1] * (len(repeats) - len(self.shape))), *self.shape]
    pairs: list[Dim] = [dim for pair in zip(repeats, shape, strict=True) for dim in pair]
    ones: list[Dim] = [dim for size in shape for dim in (1, size)]
    return hlo.reshape(hlo.broadcast(hlo.reshape(self, ones), pairs), made[0].shape)


@lowers("aten.flip.default")
def flip(hlo: Builder, made: Made, self: Value, dims: Sequence[int]) -> Value:
    chosen = axes(dims, len(self.shape)) if dims else []
    return hlo.emit("reverse", [self], self.shape, self.dtype, f"dimensions = {integers(chosen)}")


@lowers("aten.broadcast_tensors.default")
def broadcast_tensors(hlo: Builder, made: Made, tensors: Sequence[Value]) -> list[Value]:
    return [hlo.broadcast(value, tensor.shape) for value, tensor in zip(tensors, made, strict=True)]


@lowers("aten.meshgrid.default", "aten.meshgrid.indexing")
def meshgrid(hlo: Builder, made: Made, tensors: Sequence[Value], indexing: str = "ij") -> list[Value]:
    order = list(range(len(tensors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    lines = [hlo.reshape(value, (tensor.shape[at],)) for value, tensor, at in zip(tensors, made, order, strict=True)]
    return [hlo.broadcast(line, tensor.shape, [at]) for line, tensor, at in zip(lines, made, order, strict=True)]


@lowers("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(hlo: Builder, made: Made, self: Value) -> Value:
    parts = [hlo.reshape(part, (*self.shape, 1)) for part in hlo.parts(self)]
    return hlo.concatenate(parts, len(self.shape), made[0].shape)


@lowers("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(hlo: Builder, made: Made, self: Value) -> Value:
    last = len(self.shape) - 1
    parts = [hlo.slice_dim(self, last, at, at + 1, 1) for at in (0, 1)]
    return hlo.pointwise("complex", *(hlo.reshape(part, made[0].shape) for part in parts), dtype=made[0].dtype)


def _part(name: str, hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.emit(name, [self], self.shape, made[0].dtype)


for _name in ("real", "imag"):
    add(f"aten.{_name}.default", partial(_part, _name))


@lowers("aten._conj.default", "aten.conj_physical.default", "aten._conj_physical.default", "aten._conj_copy.default")
def conjugate(hlo: Builder, made: Made, self: Value) -> Value:
    if not is_complex(self.dtype):
        return self
    real, imag = hlo.parts(self)
    return hlo.pointwise("complex", real, hlo.pointwise("negate", imag), dtype=self.dtype)


# -- parts ------------------------------------------------------------------------------------------------------------


def from_start(index: Any, size: Dim) -> Dim:
    """Return an index or a bound counted from the start, and within the dimension."""
    if isinstance(index, str) or isinstance(size, str):
        if isinstance(index, int) and index >= 0 and index <= 1:
            return index
        if index == size or (isinstance(index, int) and index >= 2**62):
            return size
        if isinstance(index, int) and index < 0:
            return f"max({size} + {index}, 0)"
        return f"min({index}, {size})"
    return max(0, min(int(index) + size if index < 0 else int(index), size))


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_tensor(
    hlo: Builder, made: Made, self: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    dim = axis(dim, len(self.shape))
    size, kept = self.shape[dim], made[0].shape[dim]
    low = from_start(0 if start is None else start, size)
    high = from_start(size if end is None else end, size)
    if isinstance(low, int) and isinstance(high, int):
        high = max(low, high)
    return hlo.slice_dim(self, dim, low, high, kept, step)


@lowers("aten.select.int", "aten.select_copy.int")
def select_int(hlo: Builder, made: Made, self: Value, dim: int, index: Any) -> Value:
    dim = axis(dim, len(self.shape))
    size = self.shape[dim]
    if isinstance(index, str) or (isinstance(size, str) and index < 0):
        at = str(index) if isinstance(index, str) else f"{size} + ({index})"
        part = hlo.slice_dim(self, dim, at, f"{at} + 1", 1)
    else:
        place = int(index) + int(size) if index < 0 else int(index)
        part = hlo.slice_dim(self, dim, place, place + 1, 1)
    return hlo.reshape(part, made[0].shape)


@lowers("aten.narrow.default")
def narrow(hlo: Builder, made: Made, self: Value, dim: int, start: Any, length: Any) -> Value:
    dim = axis(dim, len(self.shape))
    low = from_start(start, self.shape[dim])
    high = low + length if isinstance(low, int) and isinstance(length, int) else f"{low} + {length}"
    return hlo.slice_dim(self, dim, low, high, made[0].shape[dim])


def _split(hlo: Builder, made: Made, self: Value, dim: int = 0, **_: Any) -> list[Value]:
    """Cut a dimension into the sizes of the outputs."""
    dim, at, parts = axis(dim, len(self.shape)), 0, []
    for tensor in made:
        size = tensor.shape[dim]
        if isinstance(size, str):
            raise ConversionError("it splits a dimension whose parts have dynamic sizes")
        parts.append(hlo.slice_dim(self, dim, at, at + size, size))
        at += size
    return parts


for _op in (
    "split.Tensor", "split.sizes", "split_with_sizes.default", "chunk.default", "split_copy.Tensor",
    "split_with_sizes_copy.default", "tensor_split.sections", "unsafe_chunk.default", "unsafe_split.Tensor",
):  # fmt: skip
    add(f"aten.{_op}", _split)


@lowers("aten.unbind.int", "aten.unbind_copy.int")
def unbind(hlo: Builder, made: Made, self: Value, dim: int = 0) -> list[Value]:
    dim = axis(dim, len(self.shape))
    rows = [hlo.slice_dim(self, dim, at, at + 1, 1) for at in range(len(made))]
    return [hlo.reshape(row, tensor.shape) for row, tensor in zip(rows, made, strict=True)]


@lowers("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(hlo: Builder, made: Made, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Every (columns + 1)th element of the two dimensions as one."""
    rank = len(self.shape)
    rows, columns = axis(dim1, rank), axis(dim2, rank)
    rest = [at for at in range(rank) if at not in (rows, columns)]
    last = hlo.transpose(self, [*rest, rows, columns])
    height, width = last.shape[-2:]
    size = made[0].shape[-1]
    if isinstance(height, str) or isinstance(width, str) or isinstance(size, str):
        raise ConversionError("the diagonal has a dynamic size")
    flat = hlo.reshape(last, (*last.shape[:-2], height * width))
    first = offset if offset >= 0 else -offset * width
    limit = first + (size - 1) * (width + 1) + 1 if size else first
    return hlo.slice_dim(flat, len(rest), min(first, height * width), limit, size, width + 1)


@lowers("aten.roll.default")
def roll(hlo: Builder, made: Made, self: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Exchange the two parts of each dimension; without dimensions, of all elements in a row."""
    if not dims:
        if not is_static(self.shape):
            raise ConversionError("it rolls dynamic sizes")
        flat = hlo.reshape(self, (prod(int(size) for size in self.shape),))
        return hlo.reshape(roll(hlo, made, flat, shifts, [0]), self.shape)
    value = self
    for shift, dim in zip(shifts, dims, strict=True):
        at = axis(dim, len(value.shape))
        size = value.shape[at] if value.shape else 0
        if isinstance(size, str):
            raise ConversionError("it rolls a dimension with a dynamic size")
        cut = -shift % size if size else 0
        if cut:
            parts = [hlo.slice_dim(value, at, cut, size, size - cut), hlo.slice_dim(value, at, 0, cut, cut)]
            value = hlo.concatenate(parts, at, value.shape)
    return value


# -- joins and pads ---------------------------------------------------------------------------------------------------


@lowers("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(hlo: Builder, made: Made, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Join tensors; a vector without elements fits any others."""
    kept = [one for one in tensors if one.shape != (0,)] or list(tensors)[:1]
    values = [hlo.convert(one, made[0].dtype) for one in kept]
    return values[0] if len(values) == 1 else hlo.concatenate(values, axis(dim, len(made[0].shape)), made[0].shape)


@lowers("aten.stack.default")
def stack(hlo: Builder, made: Made, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = axis(dim, len(made[0].shape))
    shape = (*made[0].shape[:dim], 1, *made[0].shape[dim + 1 :])
    values = [hlo.reshape(hlo.convert(one, made[0].dtype), shape) for one in tensors]
    return values[0] if len(values) == 1 else hlo.concatenate(values, dim, made[0].shape)


@lowers("aten.constant_pad_nd.default")
def constant_pad(hlo: Builder, made: Made, self: Value, pad: Sequence[Dim], value: Any = 0) -> Value:
    rank = len(self.shape)
    if not is_static(pad):
        raise ConversionError("it pads by dynamic sizes")
    low, high = [0] * rank, [0] * rank
    for at in range(len(pad) // 2):
        low[rank - 1 - at], high[rank - 1 - at] = int(pad[2 * at]), int(pad[2 * at + 1])
    return hlo.pad(self, operand(hlo, value, self.dtype), low, high, [0] * rank, made[0].shape)


def placed(hlo: Builder, self: Value, src: Value, dim: int, start: int, step: int) -> Value:
    """Return a tensor with some of its elements along a dimension replaced."""
    rank, size, count = len(self.shape), self.shape[dim], src.shape[dim]
    if isinstance(size, str) or isinstance(count, str):
        raise ConversionError("it writes to a part of a dimension with a dynamic size")
    if not count:
        return self
    if step == 1:
        sides = [(0, start), (start + count, size)]
        around = [hlo.slice_dim(self, dim, low, high, high - low) for low, high in sides]
        parts = [part for part in (around[0], src, around[1]) if part.shape[dim] != 0]
        return parts[0] if len(parts) == 1 else hlo.concatenate(parts, dim, self.shape)
    low, high, inner = [0] * rank, [0] * rank, [0] * rank
    low[dim], inner[dim] = start, step - 1
    high[dim] = size - start - ((count - 1) * step + 1)
    spread = hlo.pad(src, hlo.full(0, (), src.dtype), low, high, inner, self.shape)
    is_new = hlo.pad(hlo.full(True, src.shape, "bool"), hlo.full(False, (), "bool"), low, high, inner, self.shape)
    return hlo.select(is_new, spread, self)


@lowers("aten.slice_scatter.default")
def slice_scatter(
    hlo: Builder, made: Made, self: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    dim = axis(dim, len(self.shape))
    low = from_start(0 if start is None else start, self.shape[dim])
    if isinstance(low, str):
        raise ConversionError("it writes from a dynamic place")
    return placed(hlo, self, hlo.convert(src, self.dtype), dim, low, step)


@lowers("aten.select_scatter.default")
def select_scatter(hlo: Builder, made: Made, self: Value, src: Value, dim: int, index: Any) -> Value:
    dim = axis(dim, len(self.shape))
    size = self.shape[dim]
    if isinstance(index, str) or isinstance(size, str):
        raise ConversionError("it writes to a dynamic place")
    row = hlo.reshape(hlo.convert(src, self.dtype), (*self.shape[:dim], 1, *self.shape[dim + 1 :]))
    return placed(hlo, self, row, dim, index % size, 1)
