"""Write a graph as a function of an MLIR module, in any dialect: arguments, sizes, nodes, calls, nested bodies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_mlir
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.sizes.symbols import symbols_by_tensor
from torch_ir.ops.prepare_run import has_body_alone
from torch_ir.targets.mlir import numbers
from torch_ir.targets.mlir.lines import Lines, Typed, names_of, types_of
from torch_ir.targets.mlir.syntax import symbol

ENTRY = "main"
Value = TypeVar("Value", bound=Typed)


class Function(NamedTuple):
    """A function of the module: its symbol, what it computes, and its lines."""

    symbol: str
    body: IR
    lines: list[str]


class Refused(NamedTuple):
    """A node that cannot be written, and why."""

    node: OpNode
    why: str


class GraphWriter(Lines, ABC, Generic[Value]):
    """Writes one graph; `values` are its tensors by name, `missing` the nodes that cannot be written.

    A dialect adds its constants, its operators, and how it reads a size.
    """

    sizes: numbers.Sizes

    def __init__(self, ir: IR, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.ir = ir
        self.values: dict[str, Value] = {}
        self.missing: list[Refused] = []
        self._functions = functions
        self._bound = symbols_by_tensor(ir.symbols.values())

    # -- what a dialect defines -----------------------------------------------------------------------------------

    @abstractmethod
    def new(self, tensor: TensorMeta) -> Value:
        """Return a value for a tensor, under a name of its own."""

    @abstractmethod
    def missing_value(self, tensor: TensorMeta) -> Value:
        """Return a value for the result of a node that cannot be written."""

    @abstractmethod
    def load(self, tensor: TensorMeta) -> None:
        """Write a constant or a weight."""

    @abstractmethod
    def measured(self, value: Value, dim: int | None, name: str) -> numbers.Value:
        """Write how a size, with its name, is read: from a dimension of a value, or from a scalar."""

    @abstractmethod
    def written(self, node: OpNode) -> Sequence[Value]:
        """Write a node that is not a call; return its results, or raise ConversionError."""

    def tensor(self, tensor: TensorMeta) -> Value:
        """Return a tensor to pass to or return from a function."""
        return self.values[tensor.name]

    # -- functions ------------------------------------------------------------------------------------------------

    def function(
        self,
        head: str,
        arguments: Sequence[tuple[TensorMeta, str]],
        loaded: Iterable[TensorMeta] = (),
        attributes: str = "",
    ) -> list[str]:
        """Write the graph as a function of tensors, each with a text for its location; return its lines."""
        given = [self.new(tensor) for tensor, _ in arguments]
        self.values.update((tensor.name, value) for (tensor, _), value in zip(arguments, given, strict=True))
        for tensor in loaded:
            self.load(tensor)
        for tensor, _ in arguments:
            self._bind(tensor)
        self._nodes(self.ir.nodes)
        results = [self.tensor(tensor) for tensor in self.ir.returns.inputs]
        shown = ", ".join(
            f"{value.name}: {value.type}{f' loc({in_mlir(place)})' if place else ''}"
            for value, (_, place) in zip(given, arguments, strict=True)
        )
        types = types_of(results)
        end = f"    return {names_of(results)} : {types}" if results else "    return"
        return [f"  func.func {head}({shown}) -> ({types}){attributes} {{", *self.all_lines(), end, "  }"]

    def private_function(self, name: str) -> Function:
        """Write the graph as a private function of the module."""
        arguments = [(tensor, "") for tensor in self.ir.graph_inputs]
        return Function(symbol(name), self.ir, self.function(f"private {symbol(name)}", arguments))

    def inside(self, body: IR, operands: Sequence[Value]) -> list[Value]:
        """Write the nodes of a function here, with only its operands in scope; return its results."""
        outer = self.ir, self.values, self.sizes.values, self._bound
        self.ir, self._bound = body, symbols_by_tensor(body.symbols.values())
        self.sizes.values = dict(self.sizes.values)
        self.values = {given.name: value for given, value in zip(body.graph_inputs, operands, strict=True)}
        for tensor in body.params:
            self.load(tensor)
        for tensor in body.graph_inputs:
            self._bind(tensor)
        self._nodes(body.nodes)
        results = [self.values[tensor.name] for tensor in body.graph_outputs]
        self.ir, self.values, self.sizes.values, self._bound = outer
        return results

    # -- nodes ----------------------------------------------------------------------------------------------------

    def is_needed(self, node: OpNode) -> bool:
        """Whether a node is written."""
        return True

    def node(self, node: OpNode) -> None:
        """Write a node; if it cannot be written, record it as missing and continue."""
        outer, self.place = self.place, node.name
        try:
            results = self._function_call(node) if has_body_alone(node) else self.written(node)
        except (ArithmeticError, ConversionError, LookupError, TypeError, ValueError) as error:
            why = "" if isinstance(error, ConversionError) else "its arguments or results are invalid: "
            self.missing.append(Refused(node, f"{why}{error}"))
            results = [self.missing_value(tensor) for tensor in node.outputs]
        self.values.update((tensor.name, value) for tensor, value in zip(node.outputs, results, strict=True))
        for tensor in node.outputs:
            self._bind(tensor)
        self.place = outer

    def reads(self, node: OpNode, start: str) -> list[Value]:
        """Return the tensors of the arguments whose names begin with `start`."""
        pairs = zip(node.args, node.inputs, strict=True)
        return [self.values[tensor.name] for name, tensor in pairs if name.startswith(start)]

    def _nodes(self, nodes: Iterable[OpNode]) -> None:
        for node in filter(self.is_needed, nodes):
            self.node(node)

    def _function_call(self, node: OpNode) -> list[Value]:
        function = self._functions[node.attrs["function"]]
        given = dict(zip(node.args, node.inputs, strict=True))
        operands = [self.tensor(given[tensor.name]) for tensor in function.body.graph_inputs]
        made = [self.new(tensor) for tensor in node.outputs]
        self.call(function.symbol, operands, made)
        return made

    def _bind(self, tensor: TensorMeta) -> None:
        """Define the symbols that a tensor determines."""
        for known in self._bound.get(tensor, ()):
            size = self.measured(self.values[tensor.name], known.dim, known.name)
            self.sizes.bind(known.name, known.name if known.dim is None else tensor.shape[known.dim], size)
