"""Write one graph as a function: each node by its rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_mlir
from torch_ir.ir import IR, Dim, OpNode, Symbol, TensorMeta
from torch_ir.ops.calling import keywords
from torch_ir.ops.decompose import NO_RULE
from torch_ir.ops.prepare_run import has_body_alone
from torch_ir.targets.mlir import numbers
from torch_ir.targets.mlir.numbers import Sizes
from torch_ir.targets.stablehlo import branches
from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules import RULES
from torch_ir.targets.stablehlo.rules.division import floor_quotient
from torch_ir.targets.stablehlo.size_arithmetic import FLOAT, STABLEHLO, TYPES


class Function(NamedTuple):
    """A function of the module: its symbol, what it computes, and its lines."""

    symbol: str
    body: IR
    lines: list[str]


class Refused(NamedTuple):
    """A node that cannot be written, and why."""

    node: OpNode
    why: str


class Writer(Builder):
    """Writes one graph; `values` are its tensors by name, `missing` the nodes that cannot be written."""

    def __init__(self, ir: IR, functions: Mapping[str, Function], reasons: Mapping[str, str]) -> None:
        super().__init__()
        self.ir = ir
        self.values: dict[str, Value] = {}
        self.missing: list[Refused] = []
        self._functions = functions
        self._reasons = reasons  # why operators without a rule were not decomposed
        self._sizes = Sizes(self._apply, self._number, STABLEHLO)
        self._bound = _symbols_by_tensor(ir)

    def function(self, head: str, arguments: Sequence[tuple[TensorMeta, str]]) -> list[str]:
        """Write the graph as a function of tensors, each with a text for its location; return its lines."""
        given = [self._argument(tensor) for tensor, _ in arguments]
        for tensor, _ in arguments:
            self.bind(tensor)
        self.nodes(self.ir.nodes)
        results = [self.values[tensor.name] for tensor in self.ir.returns.inputs]
        shown = ", ".join(
            f"{value.name}: {value.type}{f' loc({in_mlir(place)})' if place else ''}"
            for value, (_, place) in zip(given, arguments, strict=True)
        )
        types = ", ".join(value.type for value in results)
        names = ", ".join(value.name for value in results)
        end = f"    return {names} : {types}" if results else "    return"
        return [f"  func.func {head}({shown}) -> ({types}) {{", *self.whole(), end, "  }"]

    def _argument(self, tensor: TensorMeta) -> Value:
        value = Value(self.name(tensor.name), tensor.shape, tensor.dtype)
        self.values[tensor.name] = value
        return value

    # -- sizes ----------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> Value:
        if isinstance(dim, int):
            return self.full(dim, (), "int64")
        return Value(self._sizes.of(dim).name, (), "int64")

    def bind(self, tensor: TensorMeta) -> None:
        """Define the symbols that a tensor determines."""
        for known in self._bound.get(tensor.name, ()):
            value = self.values[tensor.name]
            if known.dim is None:
                found = self.reshape(self.convert(value, "int64"), ())
                self._sizes.bind(known.name, known.name, _as_number(found))
            else:
                read = self.emit("get_dimension_size", [value], (), "int32", f"dimension = {known.dim} : i64")
                self._sizes.bind(known.name, tensor.shape[known.dim], _as_number(self.convert(read, "int64")))

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

    def nodes(self, nodes: Iterable[OpNode]) -> None:
        for node in nodes:
            if not any(tensor.consumers or tensor.name in self._bound for tensor in node.outputs):
                continue  # a random number or an assertion, which no result depends on
            self.place = node.name
            try:
                results = self._written(node)
            except ConversionError as error:
                self.missing.append(Refused(node, str(error)))
                results = [Value("%missing", tensor.shape, tensor.dtype) for tensor in node.outputs]
            self.give(node.outputs, results)
            for tensor in node.outputs:
                self.bind(tensor)
            self.place = ""

    def give(self, tensors: Sequence[TensorMeta], results: Sequence[Value]) -> None:
        self.values.update((tensor.name, value) for tensor, value in zip(tensors, results, strict=True))

    def _written(self, node: OpNode) -> list[Value]:
        region = branches.WRITERS.get(node.op_type)
        if has_body_alone(node):
            return self._function_call(node)
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

    def _function_call(self, node: OpNode) -> list[Value]:
        function = self._functions[str(node.attrs["function"])]
        given = dict(zip(node.args, node.inputs, strict=True))
        operands = [self.values[given[tensor.name].name] for tensor in function.body.graph_inputs]
        made = [Value(self.name(tensor.name), tensor.shape, tensor.dtype) for tensor in node.outputs]
        self.call(function.symbol, operands, made)
        return made

    def inside(self, body: IR, operands: Sequence[Value]) -> list[Value]:
        """Write the nodes of a function here, with only its operands in scope; return its results."""
        outer = self.ir, self.values, self._sizes.values, self._bound, self.place
        self.ir, self._bound, self._sizes.values = body, _symbols_by_tensor(body), dict(self._sizes.values)
        self.values = {given.name: value for given, value in zip(body.graph_inputs, operands, strict=True)}
        for tensor in body.params:
            self.load(tensor)
        for tensor in body.graph_inputs:
            self.bind(tensor)
        self.nodes(body.nodes)
        results = [self.values[tensor.name] for tensor in body.graph_outputs]
        self.ir, self.values, self._sizes.values, self._bound, self.place = outer
        return results

    def load(self, tensor: TensorMeta) -> None:
        """Write a constant of the graph."""
        if tensor.param is None or tensor.param.data is None:
            raise ConversionError(f"{tensor!r} has no values")
        self.values[tensor.name] = self.literal(tensor.param.data)


_DTYPES = {text: dtype for dtype, text in TYPES.items()}


def _as_number(value: Value) -> numbers.Value:
    return numbers.Value(value.name, TYPES[value.dtype])


def _type(tensor: TensorMeta) -> str:
    return Value("", tuple(tensor.shape), tensor.dtype).type


def _symbols_by_tensor(ir: IR) -> dict[str, list[Symbol]]:
    found: dict[str, list[Symbol]] = {}
    for known in ir.symbols.values():
        if known.tensor is not None:
            found.setdefault(known.tensor.name, []).append(known)
    return found
