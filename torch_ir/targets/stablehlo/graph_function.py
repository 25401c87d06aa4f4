"""Write one graph as a function: each node by its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, Dim, OpNode, TensorMeta
from torch_ir.ops.calling import keywords
from torch_ir.ops.decompose import NO_RULE
from torch_ir.targets.mlir import numbers
from torch_ir.targets.mlir.graph_writer import Function, GraphWriter
from torch_ir.targets.mlir.numbers import Sizes
from torch_ir.targets.stablehlo import branches
from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules import RULES
from torch_ir.targets.stablehlo.rules.division import floor_quotient
from torch_ir.targets.stablehlo.size_arithmetic import FLOAT, STABLEHLO, TYPES


class Writer(GraphWriter[Value], Builder):
    """Writes one graph; `reasons` say why operators without a rule were not decomposed."""

    def __init__(self, ir: IR, functions: Mapping[str, Function], reasons: Mapping[str, str]) -> None:
        super().__init__(ir, functions)
        self.sizes = Sizes(self._apply, self._number, STABLEHLO)
        self._reasons = reasons

    def new(self, tensor: TensorMeta) -> Value:
        return Value(self.name(tensor.name), tensor.shape, tensor.dtype)

    def missing_value(self, tensor: TensorMeta) -> Value:
        return Value("%missing", tensor.shape, tensor.dtype)

    def load(self, tensor: TensorMeta) -> None:
        """Write a constant of the graph."""
        if tensor.param is None or tensor.param.data is None:
            raise ConversionError(f"{tensor!r} has no values")
        self.values[tensor.name] = self.literal(tensor.param.data)

    # -- sizes ----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Value:
        if isinstance(dim, int):
            return self.full(dim, (), "int64")
        found = self.sizes.of(dim)
        return Value(found.name, (), _DTYPES[found.type])

    def measured(self, value: Value, dim: int | None, name: str) -> numbers.Value:
        if dim is None:
            return _as_number(self.reshape(self.convert(value, "int64"), ()))
        read = self.emit("get_dimension_size", [value], (), "int32", f"dimension = {dim} : i64")
        return _as_number(self.convert(read, "int64"))

    def _number(self, value: Any) -> numbers.Value:
        return _as_number(self.full(value, (), "float64" if isinstance(value, float) else "int64"))

    def _apply(self, name: str, operands: list[numbers.Value], kind: str) -> numbers.Value:
        values = [Value(one.name, (), _DTYPES[one.type]) for one in operands]
        if name == "floor_divide":
            return _as_number(floor_quotient(self, values[0], values[1]))
        if kind == FLOAT:
            values = [self.convert(value, "float64") for value in values]
        return _as_number(values[0] if name == "convert" else self.pointwise(name, *values))

    # -- nodes ----------------------------------------------------------------------------------------------------

    def is_needed(self, node: OpNode) -> bool:
        """Whether a result depends on a node, unlike on an assertion or an unread random number."""
        return any(tensor.consumers or tensor in self._bound for tensor in node.outputs)

    def written(self, node: OpNode) -> Sequence[Value]:
        region = branches.WRITERS.get(node.op_type)
        if region is not None:
            return region(self, node)
        rule = RULES.get(node.op_type)
        if rule is None:
            raise ConversionError(self._reasons.get(node.op_type, NO_RULE))
        made = rule(self, node.outputs, **self._arguments(node))
        found = [made] if isinstance(made, Value) else list(made)
        return [self._checked(value, tensor) for value, tensor in zip(found, node.outputs, strict=True)]

    def _arguments(self, node: OpNode) -> dict[str, Any]:
        tensors = {name: self.values[tensor.name] for name, tensor in zip(node.args, node.inputs, strict=True)}
        return keywords(tensors, node.attrs, lambda value: value)

    def _checked(self, value: Value, tensor: TensorMeta) -> Value:
        """Return a result with the graph's own names of sizes."""
        if value.dtype != tensor.dtype or len(value.shape) != len(tensor.shape):
            raise ConversionError(f"its rule made {value.type} of {tensor!r}")
        return value._replace(shape=tuple(tensor.shape)) if value.type == _type(tensor) else value


_DTYPES = {text: dtype for dtype, text in TYPES.items()}


def _as_number(value: Value) -> numbers.Value:
    return numbers.Value(value.name, TYPES[value.dtype])


def _type(tensor: TensorMeta) -> str:
    return Value("", tuple(tensor.shape), tensor.dtype).type
