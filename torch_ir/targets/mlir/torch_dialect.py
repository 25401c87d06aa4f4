"""Write nodes as operators of the torch dialect, in program order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_mlir
from torch_ir.ir import IR, OpNode, Symbol, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ops.calling import keywords
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.prepare_run import has_body_alone, ordered_arguments
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import schema_of
from torch_ir.ops.torch_types import to_name
from torch_ir.targets.mlir import control_flow
from torch_ir.targets.mlir.dialect import dialect_name, torch_dialect
from torch_ir.targets.mlir.function_text import Text
from torch_ir.targets.mlir.numbers import BOOL, FLOAT, INT, Sizes, Value
from torch_ir.targets.mlir.operands import Operands
from torch_ir.targets.mlir.syntax import builtin_type, literal, symbol, torch_type
from torch_ir.targets.splitting import Splitter

SCOPE = "model"  # the parameter scope of weights
ENTRY = "main"
_NUMBERS = ("int", "float", "bool", "number")  # schema types of results that are not tensors


class Function(NamedTuple):
    """A function of the module: its symbol, what it computes, and its lines."""

    symbol: str
    body: IR
    lines: list[str]


class Writer:
    """Writes one graph; `values` are its tensors by name, `missing` the nodes that the dialect cannot express."""

    def __init__(self, ir: IR, symbols: FreeNames, functions: Mapping[str, Function]) -> None:
        self.ir = ir
        self.text = Text()
        self.sizes = Sizes(self.text.compute, self.text.constant)
        self._operands = Operands(self.text, self.sizes)
        self.values = {t.name: Value(self.text.name(t.name), torch_type(t)) for t in ir.graph_inputs}
        self.globals: list[str] = []
        self.missing: list[OpNode] = []
        self._symbols = symbols
        self._functions = functions
        self._splitter = Splitter(ir)
        self._known = torch_dialect()
        self._bound: dict[str, list[Symbol]] = {}  # by the tensor that determines them
        for known in ir.symbols.values():
            if known.tensor is not None:
                self._bound.setdefault(known.tensor.name, []).append(known)

    def function(self, name: str, attributes: str = "") -> list[str]:
        """Write the graph as a function; return its lines."""
        for tensor in self.ir.graph_inputs:
            self.bind(tensor)
        self.nodes(self.ir.nodes)
        results = [self.tensor(result) for result in self.ir.returns.inputs]
        inputs = [self.values[tensor.name] for tensor in self.ir.graph_inputs]
        given = ", ".join(f"{value.name}: {value.type}" for value in inputs)
        types = ", ".join(result.type for result in results)
        returned = f"return {', '.join(result.name for result in results)} : {types}" if results else "return"
        head = f"  func.func {name}({given}) -> ({types}){attributes} {{"
        return [head, *self.text.whole(), f"    {returned}", "  }"]

    # -- inputs and weights ---------------------------------------------------------------------------------------

    def load(self, tensor: TensorMeta) -> None:
        """Load an external weight, or a constant of the graph."""
        made = self.values[tensor.name] = Value(self.text.name(tensor.name), torch_type(tensor))
        if tensor.param is not None and tensor.param.data is not None:
            self.text.say(f"{made.name} = torch.vtensor.literal({literal(tensor, tensor.param.data)}) : {made.type}")
            return
        key, plain = tensor.key or tensor.name, builtin_type(tensor)
        place = symbol(self._symbols.free(key))
        parameter = f"#flow.parameter.named<{in_mlir(SCOPE)}::{in_mlir(key)}>"
        self.globals.append(f"  util.global private {place} = {parameter} : {plain}")
        loaded = self.text.name(key)
        self.text.say(f"{loaded} = util.global.load {place} : {plain}")
        self.text.say(f"{made.name} = torch_c.from_builtin_tensor {loaded} : {plain} -> {made.type}")

    def bind(self, tensor: TensorMeta) -> None:
        """Define the symbols that a tensor determines."""
        for known in self._bound.get(tensor.name, ()):
            value = self.values[tensor.name]
            if known.dim is None:
                self.sizes.bind(known.name, known.name, value)
            else:
                dim = self.text.constant(known.dim)
                size = self.text.operation("torch.aten.size.int", [value, dim], [(known.name, INT)])[0]
                self.sizes.bind(known.name, tensor.shape[known.dim], size)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def nodes(self, nodes: Iterable[OpNode]) -> None:
        for node in nodes:
            self._node(node)
            for tensor in node.outputs:
                self.bind(tensor)

    def _node(self, node: OpNode) -> None:
        """Write a node or its decomposition; otherwise record it as missing and continue."""
        self.text.place = node.name
        try:
            self._written(node)
        except ConversionError:
            self.missing.append(node)
            self.give(node, [Value("%missing", "!torch.vtensor")] * len(node.outputs))
        self.text.place = ""

    def _written(self, node: OpNode) -> None:
        if writes_in_place(node) or executor_of(node) is not None:
            raise ConversionError("it writes in place or runs Python code")
        region = control_flow.WRITERS.get(node.op_type)
        if has_body_alone(node):
            self._function_call(node)
        elif region is not None:
            self.give(node, region(self, node))
        elif node.op_type in self._known and self._has_all_results(node):
            self._operator(node)
        else:
            with self._splitter.split(node) as body:
                for step in body.nodes:
                    self._node(step)

    def give(self, node: OpNode, results: Sequence[Value]) -> None:
        self.values.update((tensor.name, value) for tensor, value in zip(node.outputs, results, strict=True))

    def _has_all_results(self, node: OpNode) -> bool:
        returns = _schema(node).returns
        return len(returns) == len(node.outputs) or [str(result.type) for result in returns] == ["List[Tensor]"]

    def _function_call(self, node: OpNode) -> None:
        function = self._functions[node.attrs["function"]]
        given = dict(zip(node.args, node.inputs, strict=True))
        operands = [self.tensor(given[tensor.name]) for tensor in function.body.graph_inputs]
        made = [Value(self.text.name(tensor.name), torch_type(tensor)) for tensor in node.outputs]
        self.text.call(function.symbol, operands, made)
        self.give(node, made)

    def _operator(self, node: OpNode) -> None:
        name, operands = self._call(node)
        kinds = [str(result.type) for result in _schema(node).returns]
        if kinds == ["List[Tensor]"]:
            listed = self.text.operation(name, operands, [(node.name, "!torch.list<vtensor>")])
            name, operands, kinds = "torch.prim.ListUnpack", listed, ["Tensor"] * len(node.outputs)
        results = [
            (tensor.name, _number_type(tensor) if kind in _NUMBERS else torch_type(tensor))
            for tensor, kind in zip(node.outputs, kinds, strict=True)
        ]
        self.give(node, self.text.operation(name, operands, results))

    def _call(self, node: OpNode) -> tuple[str, list[Value]]:
        """Return the name of an operator and its operands; a number for a tensor selects the Scalar overload."""
        found = find_operator(node.op_type)
        assert found is not None  # the dialect's operators are torch's
        tensors = {name: self.values[tensor.name] for name, tensor in zip(node.args, node.inputs, strict=True)}
        values = keywords(tensors, node.attrs, lambda value: value)
        places, known, _ = ordered_arguments(node, found, values, to_name)
        kinds = [str(argument.real_type) for argument in _schema(node).arguments]
        given = list(zip([*places, *known.values()], kinds, strict=True))
        scalar = node.op_type.replace(".Tensor", ".Scalar")
        if scalar not in self._known or not any(map(_is_number_for_tensor, given)):
            return dialect_name(node.op_type), [self._operands.of(*pair) for pair in given]
        scalars = [(pair[0], "number") if _is_number_for_tensor(pair) else pair for pair in given]
        return dialect_name(scalar), [self._operands.of(*pair) for pair in scalars]

    # -- results --------------------------------------------------------------------------------------------------

    def tensor(self, tensor: TensorMeta) -> Value:
        """Return an output of the function; numbers become 0-d tensors."""
        value = self.values[tensor.name]
        if value.type.startswith("!torch.vtensor"):
            return value
        return self.text.compute("torch.prim.NumToTensor.Scalar", [value], torch_type(tensor))

    def inside(self, body: IR, operands: Collection[Value]) -> list[Value]:
        """Write the nodes of a function here, with only its operands in scope; return its results."""
        outer = self.ir, self.values, self.sizes.values, self._splitter
        self.ir, self._splitter, self.sizes.values = body, Splitter(body), dict(self.sizes.values)
        self.values = {given.name: value for given, value in zip(body.graph_inputs, operands, strict=True)}
        for tensor in body.graph_inputs:
            self.bind(tensor)
        self.nodes(body.nodes)
        results = [self.values[tensor.name] for tensor in body.graph_outputs]
        self.ir, self.values, self.sizes.values, self._splitter = outer
        return results


def _schema(node: OpNode) -> Any:
    operator: Any = find_operator(node.op_type)
    return schema_of(operator)


def _is_number_for_tensor(given: tuple[Any, str]) -> bool:
    value, kind = given
    return kind == "Tensor" and not isinstance(value, Value)


def _number_type(tensor: TensorMeta) -> str:
    """Return the type of the number that a 0-d tensor represents."""
    return BOOL if tensor.dtype == "bool" else FLOAT if "float" in tensor.dtype else INT
