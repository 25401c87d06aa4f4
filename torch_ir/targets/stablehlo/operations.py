"""Write operators of StableHLO: the few that every rule uses, and `emit` for the others.

Operators have the generic form of the specification: `%y = "stablehlo.add"(%a, %b) : (T, T) -> T`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch_ir.errors import ConversionError
from torch_ir.ir import Dim, TensorData
from torch_ir.targets.mlir.lines import Lines, names_of, types_of
from torch_ir.targets.stablehlo.element_types import (
    HALVES,
    REALS,
    dense,
    is_complex,
    is_float,
    is_integer,
    scalar_text,
    tensor_type,
)  # fmt: skip

Shape = tuple[Dim, ...]


class Value(NamedTuple):
    """A value of the text: `%conv1`, its shape and its dtype."""

    name: str
    shape: Shape
    dtype: str

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.dtype)


class Kind(NamedTuple):
    """The shape and dtype of a result."""

    shape: Shape
    dtype: str


Body = Callable[..., Sequence[Value]]  # of a region: a function of the values of its block


def is_static(shape: Sequence[Any]) -> bool:
    return not any(isinstance(dim, str) for dim in shape)


def integers(values: Sequence[int]) -> str:
    """Return an attribute: `array<i64: 1, 2>`."""
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


class Builder(Lines):
    """Writes one function; constants come first, those of a region inside it."""

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Value] = {}
        self._head: list[str] | None = []  # lines of constants; None inside a region

    def all_lines(self) -> list[str]:
        return [*(self._head or ()), *self.lines]

    # -- operators ------------------------------------------------------------------------------------------------

    def emit(self, name: str, operands: Sequence[Value], shape: Sequence[Dim], dtype: str, attrs: str = "") -> Value:
        """Write an operator with one result."""
        return self.emit_all(name, operands, [Kind(tuple(shape), dtype)], attrs)[0]

    def emit_all(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Kind],
        attrs: str = "",
        regions: Sequence[tuple[Sequence[Kind], Body]] = (),
    ) -> list[Value]:
        """Write an operator with any number of results and regions; a region is its arguments' kinds and its body."""
        made = [Value(self.name(name), *kind) for kind in results]
        left = f'{names_of(made)} = "stablehlo.{name}"({names_of(operands)})'
        right = f"{f' {{{attrs}}}' if attrs else ''} : ({types_of(operands)}) -> ({types_of(made)})"
        if not regions:
            self.write(left + right)
            return made
        for at, (kinds, body) in enumerate(regions):
            given = [Value(self.name("arg"), *kind) for kind in kinds]
            label = ", ".join(f"{value.name}: {value.type}" for value in given)
            self.open(f"{left} ({{" if at == 0 else "}, {", [f"^bb0({label}):"] if given else [])
            with self._own_constants():
                returned = body(*given)
                self.write(f'"stablehlo.return"({names_of(returned)}) : ({types_of(returned)}) -> ()')
            if at + 1 < len(regions):
                self._depth -= 1
        self.close("})" + right)
        return made

    @contextmanager
    def _own_constants(self) -> Any:
        outer = self._constants, self._head
        self._constants, self._head = {}, None
        yield
        self._constants, self._head = outer

    # -- constants ------------------------------------------------------------------------------------------------

    def full(self, value: Any, shape: Sequence[Dim], dtype: str) -> Value:
        """Return a tensor filled with a number."""
        if not is_static(shape):
            return self.broadcast(self.full(value, (), dtype), shape)
        return self._constant(f"dense<{scalar_text(value, dtype)}>", tuple(shape), dtype)

    def literal(self, data: TensorData) -> Value:
        """Return a constant tensor."""
        return self._constant(dense(data), tuple(data.shape), data.dtype)

    def numbers(self, values: Sequence[Any], dtype: str) -> Value:
        """Return a constant vector."""
        listed = ", ".join(scalar_text(value, dtype) for value in values)
        return self._constant(f"dense<[{listed}]>" if values else "dense<>", (len(values),), dtype)

    def _constant(self, elements: str, shape: Shape, dtype: str) -> Value:
        kind = tensor_type(shape, dtype)
        key = f"{elements} : {kind}"
        if key not in self._constants:
            made = self._constants[key] = Value(self.name("c"), shape, dtype)
            line = f'{made.name} = "stablehlo.constant"() {{value = {key}}} : () -> {kind}'
            if self._head is None:
                self.write(line)
            else:
                self._head.append(f"    {line}")
        return self._constants[key]

    # -- sizes ----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Value:
        """Return a size as a scalar of type i64, or of type f64 if it is a fraction."""
        raise NotImplementedError

    def sizes_of(self, dims: Sequence[Dim]) -> Value:
        """Return sizes as a vector of type i64."""
        if is_static(dims):
            return self.numbers(dims, "int64")
        parts = [self.emit("reshape", [self.size(dim)], (1,), "int64") for dim in dims]
        return parts[0] if len(parts) == 1 else self.concatenate(parts, 0, (len(parts),))

    # -- shapes ---------------------------------------------------------------------------------------------------

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        if value.shape == tuple(shape):
            return value
        if is_static(shape):
            return self.emit("reshape", [value], shape, value.dtype)
        return self.emit("dynamic_reshape", [value, self.sizes_of(shape)], shape, value.dtype)

    def broadcast(self, value: Value, shape: Sequence[Dim], dims: Sequence[int] | None = None) -> Value:
        """Broadcast to a shape; `dims` are the places of the value's dimensions in it, the last ones if None."""
        if value.shape == tuple(shape) and dims is None:
            return value
        if dims is None:
            dims = range(len(shape) - len(value.shape), len(shape))
        if len(value.shape) == len(shape) and all(
            old == new or isinstance(old, str) for old, new in zip(value.shape, shape, strict=True)
        ):
            return value
        attrs = f"broadcast_dimensions = {integers(list(dims))}"
        if is_static(shape):
            return self.emit("broadcast_in_dim", [value], shape, value.dtype, attrs)
        operands = [value, self.sizes_of(shape)]
        return self.emit("dynamic_broadcast_in_dim", operands, shape, value.dtype, attrs)

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        if list(order) == list(range(len(order))):
            return value
        shape = [value.shape[at] for at in order]
        return self.emit("transpose", [value], shape, value.dtype, f"permutation = {integers(order)}")

    def slice(
        self, value: Value, starts: Sequence[Dim], limits: Sequence[Dim], steps: Sequence[int], shape: Sequence[Dim]
    ) -> Value:
        if value.shape == tuple(shape) and set(steps) <= {1}:
            return value
        if is_static([*starts, *limits, *shape]):
            names = ("start_indices", "limit_indices", "strides")
            lists: list[Sequence[Any]] = [starts, limits, steps]
            attrs = ", ".join(f"{name} = {integers(given)}" for name, given in zip(names, lists, strict=True))
            return self.emit("slice", [value], shape, value.dtype, attrs)
        operands = [value, self.sizes_of(starts), self.sizes_of(limits), self.sizes_of(steps)]
        return self.emit("real_dynamic_slice", operands, shape, value.dtype)

    def slice_dim(self, value: Value, dim: int, start: Dim, limit: Dim, size: Dim, step: int = 1) -> Value:
        """Slice one dimension; `size` is what is left of it."""
        starts: list[Dim] = [0] * len(value.shape)
        limits, steps, shape = list(value.shape), [1] * len(value.shape), list(value.shape)
        starts[dim], limits[dim], steps[dim], shape[dim] = start, limit, step, size
        return self.slice(value, starts, limits, steps, shape)

    def concatenate(self, values: Sequence[Value], dim: int, shape: Sequence[Dim]) -> Value:
        return self.emit("concatenate", values, shape, values[0].dtype, f"dimension = {dim} : i64")

    def pad(
        self, value: Value, fill: Value, low: Sequence[int], high: Sequence[int], inner: Sequence[int], shape: Any
    ) -> Value:
        names = ("edge_padding_low", "edge_padding_high", "interior_padding")
        lists = zip(names, (low, high, inner), strict=True)
        attrs = ", ".join(f"{name} = {integers(given)}" for name, given in lists)
        return self.emit("pad", [value, fill], shape, value.dtype, attrs)

    def iota(self, shape: Sequence[Dim], dim: int, dtype: str = "int64") -> Value:
        attrs = f"iota_dimension = {dim} : i64"
        if is_static(shape):
            return self.emit("iota", [], shape, dtype, attrs)
        return self.emit("dynamic_iota", [self.sizes_of(shape)], shape, dtype, attrs)

    # -- elements -------------------------------------------------------------------------------------------------

    def convert(self, value: Value, dtype: str) -> Value:
        """Convert as torch does: anything but zero is true, imaginary parts are dropped, small integers wrap around."""
        if value.dtype == dtype:
            return value
        if is_complex(value.dtype) and not is_complex(dtype):
            if dtype != "bool":
                return self.convert(self.emit("real", [value], value.shape, REALS[value.dtype]), dtype)
        elif is_complex(dtype) and not is_complex(value.dtype):
            real = self.convert(value, REALS[dtype])
            return self.emit("complex", [real, self.full(0, value.shape, real.dtype)], value.shape, dtype)
        if dtype == "bool":
            return self.compare("NE", value, self.full(0, value.shape, value.dtype))
        if is_float(value.dtype) and is_integer(dtype):
            return self._to_integer(value, dtype)
        return self.emit("convert", [value], value.shape, dtype)

    def _to_integer(self, value: Value, dtype: str) -> Value:
        """Convert fractions as torch does on x86: those out of range, and NaN, are the smallest of 32 or 64 bits."""
        wide, bits = ("int64", 63) if dtype in ("int64", "uint8", "uint32", "uint64") else ("int32", 31)
        whole = self.emit("convert", [value], value.shape, wide)
        is_inside = self.compare("LT", self.pointwise("abs", value), self.like(value, 2.0**bits))
        return self.convert(self.select(is_inside, whole, self.like(whole, -(2**bits))), dtype)

    def pointwise(self, name: str, *values: Value, dtype: str | None = None) -> Value:
        """Write an elementwise operator; operands are broadcast to one shape."""
        shape = common_shape(*(value.shape for value in values))
        operands = [self.broadcast(value, shape) for value in values]
        return self.emit(name, operands, shape, dtype or operands[0].dtype)

    def compare(self, direction: str, left: Value, right: Value) -> Value:
        shape = common_shape(left.shape, right.shape)
        operands = [self.broadcast(left, shape), self.broadcast(right, shape)]
        attrs = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        return self.emit("compare", operands, shape, "bool", attrs)

    def select(self, condition: Value, yes: Value, no: Value) -> Value:
        return self.pointwise("select", condition, yes, no, dtype=yes.dtype)

    def parts(self, value: Value) -> list[Value]:
        """Return the real and the imaginary parts of complex numbers; other numbers as they are."""
        if not is_complex(value.dtype):
            return [value]
        return [self.emit(part, [value], value.shape, REALS[value.dtype]) for part in ("real", "imag")]

    def like(self, value: Value, number: Any) -> Value:
        """Return a number as a tensor of the same shape and dtype."""
        return self.full(number, value.shape, value.dtype)

    def wide(self, value: Value) -> Value:
        """Return a value in the dtype in which torch computes with it: float32 for half-precision numbers."""
        return self.convert(value, "float32") if value.dtype in HALVES else value

    # -- reductions -----------------------------------------------------------------------------------------------

    def reduce(self, value: Value, dims: Sequence[int], name: str, start: Any) -> Value:
        """Reduce dimensions with an operator of two operands."""
        shape = tuple(dim for at, dim in enumerate(value.shape) if at not in dims)
        scalar = Kind((), value.dtype)
        operands = [value, self.full(start, (), value.dtype)]
        region = ([scalar, scalar], lambda left, right: [self.pointwise(name, left, right)])
        attrs = f"dimensions = {integers(sorted(dims))}"
        return self.emit_all("reduce", operands, [Kind(shape, value.dtype)], attrs, [region])[0]


def common_shape(*shapes: Sequence[Dim]) -> Shape:
    """Return the shape to which shapes are broadcast; a dimension that is not 1 wins."""
    columns = itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return tuple(_common(column) for column in columns)[::-1]


def _common(dims: Sequence[Dim]) -> Dim:
    wide = [dim for dim in dims if dim != 1]
    known = [dim for dim in wide if isinstance(dim, int)]
    if len(set(known)) > 1:
        raise ConversionError(f"sizes {', '.join(map(str, sorted(set(known))))} cannot be broadcast")
    return known[0] if known else wide[0] if wide else 1
