"""Write nodes as operators of the torch dialect, in program order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_mlir
from torch_ir.ir import IR, Device, Dtype, Expr, Layout, MemoryFormat, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ops.calling import keywords
from torch_ir.ops.effects import writes_in_place
from torch_ir.ops.prepare_run import ordered_arguments
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import schema_of
from torch_ir.ops.torch_types import to_name
from torch_ir.targets.mlir import control_flow
from torch_ir.targets.mlir.dialect import dialect_name, torch_dialect
from torch_ir.targets.mlir.function_text import Text
from torch_ir.targets.mlir.graph_writer import Function, GraphWriter
from torch_ir.targets.mlir.numbers import BOOL, FLOAT, INT, Sizes, Value
from torch_ir.targets.mlir.syntax import (
    DTYPE_CODES,
    FORMAT_CODES,
    LAYOUT_CODES,
    builtin_type,
    literal,
    symbol,
    torch_type,
)
from torch_ir.targets.splitting import Splitter

SCOPE = "model"  # the parameter scope of weights
_NUMBERS = ("int", "float", "bool", "number")  # schema types of results that are not tensors
_CODES: dict[type, dict[str, int]] = {Dtype: DTYPE_CODES, Layout: LAYOUT_CODES, MemoryFormat: FORMAT_CODES}
_TENSOR_LISTS = {"Tensor": "vtensor", "Optional[Tensor]": "optional<vtensor>"}


class Writer(GraphWriter[Value], Text):
    """Writes one graph; `globals` are the lines that declare its weights."""

    def __init__(self, ir: IR, symbols: FreeNames, functions: Mapping[str, Function]) -> None:
        super().__init__(ir, functions)
        self.sizes = Sizes(self.compute, self.constant)
        self.globals: list[str] = []
        self._operands = _Operands(self, self.sizes)
        self._symbols = symbols
        self._splitter = Splitter(ir)
        self._known = torch_dialect()

    # -- inputs and weights ---------------------------------------------------------------------------------------

    def new(self, tensor: TensorMeta) -> Value:
        return Value(self.name(tensor.name), torch_type(tensor))

    def missing_value(self, tensor: TensorMeta) -> Value:
        return Value("%missing", "!torch.vtensor")

    def load(self, tensor: TensorMeta) -> None:
        """Load an external weight, or a constant of the graph."""
        made = self.values[tensor.name] = self.new(tensor)
        if tensor.param is not None and tensor.param.data is not None:
            self.write(f"{made.name} = torch.vtensor.literal({literal(tensor, tensor.param.data)}) : {made.type}")
            return
        key, plain = tensor.key or tensor.name, builtin_type(tensor)
        place = symbol(self._symbols.free(key))
        parameter = f"#flow.parameter.named<{in_mlir(SCOPE)}::{in_mlir(key)}>"
        self.globals.append(f"  util.global private {place} = {parameter} : {plain}")
        loaded = self.name(key)
        self.write(f"{loaded} = util.global.load {place} : {plain}")
        self.write(f"{made.name} = torch_c.from_builtin_tensor {loaded} : {plain} -> {made.type}")

    def measured(self, value: Value, dim: int | None, name: str) -> Value:
        if dim is None:
            return value
        return self.operation("torch.aten.size.int", [value, self.constant(dim)], [(name, INT)])[0]

    # -- nodes ----------------------------------------------------------------------------------------------------

    def written(self, node: OpNode) -> Sequence[Value]:
        """Write a node or its decomposition, of which each step may be missing."""
        if writes_in_place(node) or executor_of(node) is not None:
            raise ConversionError("it writes in place or runs Python code")
        region = control_flow.WRITERS.get(node.op_type)
        if region is not None:
            return region(self, node)
        if node.op_type in self._known and self._has_all_results(node):
            return self._operator(node)
        with self._splitter.split(node) as body:
            for step in body.nodes:
                self.node(step)
        return [self.values[tensor.name] for tensor in node.outputs]

    def _has_all_results(self, node: OpNode) -> bool:
        returns = _schema(node).returns
        return len(returns) == len(node.outputs) or [str(result.type) for result in returns] == ["List[Tensor]"]

    def _operator(self, node: OpNode) -> list[Value]:
        name, operands = self._call(node)
        kinds = [str(result.type) for result in _schema(node).returns]
        if kinds == ["List[Tensor]"]:
            listed = self.operation(name, operands, [(node.name, "!torch.list<vtensor>")])
            name, operands, kinds = "torch.prim.ListUnpack", listed, ["Tensor"] * len(node.outputs)
        results = [
            (tensor.name, _number_type(tensor) if kind in _NUMBERS else torch_type(tensor))
            for tensor, kind in zip(node.outputs, kinds, strict=True)
        ]
        return self.operation(name, operands, results)

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
        return self.compute("torch.prim.NumToTensor.Scalar", [value], torch_type(tensor))

    def inside(self, body: IR, operands: Sequence[Value]) -> list[Value]:
        outer, self._splitter = self._splitter, Splitter(body)
        results = super().inside(body, operands)
        self._splitter = outer
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


class _Operands:
    """Writes the arguments of a call into a text, as the types of its schema: lists, options, numbers, typed names."""

    def __init__(self, text: Text, sizes: Sizes) -> None:
        self._text = text
        self._sizes = sizes

    def of(self, value: Any, kind: str) -> Value:
        """Return an argument as a value of the schema's type."""
        if isinstance(value, Value):
            return value
        if value is None:
            return self._text.constant(None)
        if kind.startswith("Optional["):
            return self.of(value, kind[len("Optional[") : -1])
        if kind.startswith("List["):
            element = kind[len("List[") : -1]
            items = [self.of(item, element) for item in (value if isinstance(value, (list, tuple)) else [value])]
            return self._text.list_of(items, _TENSOR_LISTS.get(element, element))
        if isinstance(value, Expr):
            return self._number(self._sizes.of(value), kind)
        if isinstance(value, Device):
            return self._text.device(value)
        if type(value) in _CODES:
            return self._code(value)
        if isinstance(value, complex):
            raise ConversionError("the torch dialect of MLIR has no complex constants")
        if kind == "float":
            value = float(value)
        elif kind in ("number", "int") and isinstance(value, bool):
            value = int(value)
        return self._number(self._text.constant(value), kind)

    def _number(self, value: Value, kind: str) -> Value:
        """Convert a number to the requested kind; a tensor becomes a 0-d tensor."""
        if kind == "float" and value.type == INT:
            return self._text.compute("torch.aten.Float.Scalar", [value], FLOAT)
        if kind == "Tensor":
            element = "f64" if value.type == FLOAT else "si64"
            return self._text.compute("torch.prim.NumToTensor.Scalar", [value], f"!torch.vtensor<[],{element}>")
        return value

    def _code(self, value: Any) -> Value:
        codes = _CODES[type(value)]
        if value not in codes:
            raise ConversionError(f"the torch dialect of MLIR has no {type(value).__name__.lower()} {value!s}")
        return self._text.constant(codes[value])
