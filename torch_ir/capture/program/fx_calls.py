"""Convert the calls of one fx graph to nodes of the IR."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import torch
from torch import fx

from torch_ir.capture.export.symbolic_sizes import Bindings, SymbolNames, is_symbolic
from torch_ir.capture.naming.export_names import functional_name
from torch_ir.capture.program.functional import Twins, has_storage
from torch_ir.capture.program.functional_writes import Functional, UnfollowedWriteError, Writes, without_writes
from torch_ir.capture.program.node_info import NodeInfo
from torch_ir.capture.program.provenance import origin_of
from torch_ir.errors import ConversionError
from torch_ir.ir import IR, Branch, Expr, FunctionRef, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, lengthened
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ops.effects import changes_elements, gives_its_input, may_alias
from torch_ir.ops.registry import get_conversion_fn
from torch_ir.ops.schema import bind, operator_name
from torch_ir.ops.torch_internals import HigherOrderOperator, OpOverload, memory_key
from torch_ir.ops.torch_types import dtype_name, to_name

_SCALARS = {int: "int64", float: "float64", bool: "bool", torch.SymInt: "int64", torch.SymFloat: "float64",
            torch.SymBool: "bool"}  # fmt: skip
_NO_TRAINING = torch.ops.aten._native_batch_norm_legit_no_training.default
# An output: a tensor, None, or a list of these.
Made = Union[TensorMeta, None, tuple["Made", ...]]
_OFFSET = torch.ops.aten.sym_storage_offset.default
_ASSERT = torch.ops.aten._assert_scalar.default
_ON_COPIES = torch.ops.higher_order.auto_functionalized
_ON_BASES = torch.ops.higher_order.auto_functionalized_v2
_IN_ORDER = torch.ops.higher_order.with_effects


class Calls:
    """The conversion of one fx graph: the IR tensors of its nodes."""

    def __init__(self, module: fx.GraphModule, names: SymbolNames, twins: Twins) -> None:
        self.module = module
        self.names = names
        self.twins = twins
        self.writes = Writes()
        self.tensors: dict[fx.Node, tuple[Made, ...]] = {}
        self.functions: dict[str, IR] = {}
        self.bindings = Bindings(names)
        self.taken = {node.name for node in module.graph.nodes}
        self.names_left = FreeNames(self.taken)
        offsets = [node.meta["val"] for node in module.graph.nodes if node.target is _OFFSET]
        self.offsets = {symbol for offset in offsets if is_symbolic(offset) for symbol in offset.node.expr.free_symbols}

    # -- values -----------------------------------------------------------------------------------------------------

    def tensor(self, name: str, value: Any) -> TensorMeta:
        """Return the description of a value; record which symbols its shape binds."""
        if isinstance(value, torch.Tensor):
            made = TensorMeta(
                name, map(self.names.dim, value.shape), dtype_name(value.dtype), stride=self._stride(value)
            )
            sizes: Sequence[Any] = value.shape
            for index, size in enumerate(sizes):
                if is_symbolic(size):
                    self.bindings.bind(size.node.expr, made, index)
            return made
        if type(value) not in _SCALARS:
            raise ConversionError(f"{name} is a {type(value).__name__}, which the IR cannot hold")
        made = TensorMeta(name, (), _SCALARS[type(value)])
        if is_symbolic(value):
            self.bindings.bind(value.node.expr, made, None)
        return made

    def _stride(self, value: torch.Tensor) -> list[int | str] | None:
        if value.layout != torch.strided:
            return None
        if all(type(size) is int for size in (*value.shape, *value.stride())) and value.is_contiguous():
            return None
        return self.names.stride(_expressions(value.shape), _expressions(value.stride()))

    def alias(self, node: fx.Node) -> TensorMeta:
        made = self.tensors[node][0] if node in self.tensors else None
        if not isinstance(made, TensorMeta):
            raise ConversionError(f"{node.name} ({node.target}) is read as a tensor, but returns none")
        return made

    # -- calls ------------------------------------------------------------------------------------------------------

    def convert_calls(self) -> Iterator[OpNode]:
        self.bindings.are_inputs_read = True
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                yield from self._convert_call(node)
            elif node.op == "get_attr":
                self._read_attribute(node)
            elif node.op in ("call_module", "call_method"):
                raise ConversionError(f"{node.name} is a {node.op}, which does not occur in exported programs")

    def _convert_call(self, node: fx.Node) -> Iterator[OpNode]:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            self._pick(node)
        elif node.target is _ASSERT and self._is_about_storage(node.args[0]):
            return  # a graph does not show storage offsets
        elif is_symbolic(value) and not node.meta.get("unbacked_bindings"):
            return  # arithmetic on sizes: its readers have the expression
        elif isinstance(node.target, (OpOverload, HigherOrderOperator)):
            yield self._call(node, node.target, value)
        else:
            raise ConversionError(f"{node.name} calls {node.target}, which is not a torch operator")

    def _is_about_storage(self, condition: Any) -> bool:
        value: Any = condition.meta.get("val") if isinstance(condition, fx.Node) else None
        return is_symbolic(value) and not self.offsets.isdisjoint(value.node.expr.free_symbols)

    def _pick(self, node: fx.Node) -> None:
        source, index = node.args
        if is_symbolic(node.meta.get("val")):
            return
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        picked = self.tensors[source][index]
        self.tensors[node] = picked if isinstance(picked, tuple) else (picked,)

    def _call(self, node: fx.Node, target: Any, value: Any) -> OpNode:
        twin, args = target, node.args
        if node in self.twins:  # it writes: the new value becomes its result
            twin, value = self.twins[node].operator, self.twins[node].value
        if target is _ON_COPIES:  # a custom operator that writes: its new values follow its results
            twin, args = node.args[0], ()
        elif target is _IN_ORDER:  # tokens keep the order of effects, which nodes do anyway
            twin, args, value = node.args[1], node.args[2:], (None, *value[1:])
        elif target is _ON_BASES:
            raise ConversionError(
                f"{node.name} calls an operator that writes, {node.args[0]}, in the form of run_decompositions(); "
                "convert the program that torch.export.export returned"
            )
        inputs, attrs = self._arguments(node, bind(twin, args, node.kwargs))
        name = self.names_left.free(functional_name(node.name)) if node in self.twins else node.name
        outputs = self._outputs(name, value)
        made = list(_present(outputs))
        op_type, inputs, attrs, made = _whole_batch_norm(node, operator_name(twin), inputs, attrs, made)
        if twin is _ASSERT and isinstance(attrs["self"], Expr):  # torch's message contains its internal names
            attrs["assert_msg"] = f"the graph holds only where {attrs['self']}"
        self.tensors[node] = outputs
        ordinary = OpNode(name, op_type, inputs.values(), made, attrs, args=inputs, origin=origin_of(node.meta))
        if node in self.twins and changes_elements(target):
            self.writes.written[ordinary] = ordinary.inputs[0]
        return _converted(node, ordinary)

    def without_writes(
        self, nodes: list[OpNode], given: Sequence[TensorMeta], tail: Sequence[TensorMeta]
    ) -> Functional:
        """Return the nodes in functional form; `tail` are the tensors that the graph returns."""
        if self.writes.written:
            self.writes.memory = dict(self._memory())
        return without_writes(nodes, given, tail, self.writes, self.taken)

    def layout_of_functions(self) -> str:
        """Return the line of a body whose strides determine what a write changes; it applies to the whole graph."""
        lines = [body.fixed_layout for body in self.functions.values()]
        for body in self.functions.values():
            body.fixed_layout = ""
        return next(filter(None, lines), "")

    def _memory(self) -> Iterator[tuple[TensorMeta, Any]]:
        """Yield the memory of each tensor; a call that returns its input has the memory of its input."""
        known: dict[TensorMeta, Any] = {}
        # in fake mode, copies of constants share memory, and operators that return their input do not
        owners: dict[int, Any] = {}
        for node, made in self.tensors.items():
            if has_storage(node) and isinstance(made[0], TensorMeta):
                tensor, maker, storage = made[0], made[0].producer, memory_key(node.meta["val"])
                if maker is not None and gives_its_input(maker.op_type, maker.attrs):
                    owners[storage] = known.get(maker.inputs[0])
                elif isinstance(node.target, OpOverload) and not may_alias(node.target):
                    owners[storage] = node
                known[tensor] = owners.get(storage, storage)
                yield tensor, known[tensor]

    def _outputs(self, name: str, value: Any) -> tuple[Made, ...]:
        if value is None:
            return ()
        if not isinstance(value, (list, tuple)):
            return (self.tensor(name, value),)
        return tuple(self._element(f"{name}_{index}", item) for index, item in enumerate(value))

    def _element(self, name: str, value: Any) -> Made:
        """Return one of several outputs, which may be a list or None."""
        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            return self._outputs(name, value)
        return self.tensor(lengthened(name, self.taken), value)

    # -- arguments --------------------------------------------------------------------------------------------------

    def _arguments(self, node: fx.Node, bound: Mapping[str, Any]) -> tuple[dict[str, TensorMeta], dict[str, Any]]:
        """Return tensors and other values by argument name; lists with tensors are split into elements."""
        inputs: dict[str, TensorMeta] = {}
        attrs: dict[str, Any] = {}
        pending = list(bound.items())[::-1]
        while pending:
            name, value = pending.pop()
            if isinstance(value, fx.Node) and not is_symbolic(value.meta.get("val")):
                made = self._operand(value)
                if isinstance(made, TensorMeta):
                    inputs[name] = made
                else:
                    attrs[name] = made
            elif isinstance(value, (list, tuple)) and any(self._is_tensor(item) for item in value):
                pending.extend([(f"{name}.{index}", item) for index, item in enumerate(value)][::-1])
            else:
                attrs[name] = self._attribute(value, node)
        return inputs, attrs

    def _operand(self, node: fx.Node) -> TensorMeta | FunctionRef:
        if node.op == "get_attr" and node.target in self.functions:
            return FunctionRef(node.target)
        return self.alias(node)

    def _is_tensor(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(self._is_tensor(item) for item in value)
        return isinstance(value, fx.Node) and not is_symbolic(value.meta.get("val"))

    def _attribute(self, value: Any, node: fx.Node) -> Any:
        if isinstance(value, fx.Node):
            value = value.meta["val"]
        if is_symbolic(value):
            return self.names.scalar(value)
        if isinstance(value, (list, tuple)):
            return [self._attribute(item, node) for item in value]
        if isinstance(value, dict):
            return {key: self._attribute(item, node) for key, item in value.items()}
        named = to_name(value)
        if named is None or isinstance(named, (bool, int, float, complex, str)):
            return named
        raise ConversionError(
            f"{node.name} ({node.target}) has an argument {value!r:.80} of type {type(value).__name__}"
        )

    def _read_attribute(self, node: fx.Node) -> None:
        """Convert a sub-graph to a function."""
        assert isinstance(node.target, str)
        found: Any = self.module
        for part in node.target.split("."):
            found = getattr(found, part)
        if not isinstance(found, fx.GraphModule):
            raise ConversionError(
                f"{node.name} reads {node.target}, a {type(found).__name__} that is not in the signature"
            )
        self.functions[node.target] = _convert_function(found, self.names, self.twins)


def _convert_function(module: fx.GraphModule, names: SymbolNames, twins: Twins) -> IR:
    """Convert a sub-graph to an IR; everything that it reads is an input."""
    table = Calls(module, names, twins)
    inputs = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            inputs.append(table.tensor(node.name, node.meta["val"]))
            table.tensors[node] = (inputs[-1],)
    nodes = list(table.convert_calls())
    returned: Any = next(node for node in module.graph.nodes if node.op == "output").args[0]
    outputs: list[TensorMeta] = []
    if isinstance(returned, (list, tuple)):
        kind = "list" if isinstance(returned, list) else "tuple"  # operators may require one of them
        tree: Tree = Branch(kind, tuple(returned_leaf(table, value, outputs) for value in returned))
    else:
        tree = returned_leaf(table, returned, outputs)
    functional = table.without_writes(nodes, inputs, outputs)
    if functional.mutations:
        raise UnfollowedWriteError("a body writes to its inputs")
    return IR(
        functional.nodes,
        inputs,
        functional.returned,
        functions=table.functions,
        output_tree=tree,
        symbols=table.bindings.symbols({}, {}),
        fixed_layout=functional.layout or table.layout_of_functions(),
    )


def returned_leaf(table: Calls, value: Any, outputs: list[TensorMeta]) -> Tree:
    """Return the leaf for one returned value: a slot for a tensor, else the value itself."""
    if isinstance(value, fx.Node) and not is_symbolic(value.meta.get("val")):
        outputs.append(table.alias(value))
        return Slot(len(outputs) - 1)
    if isinstance(value, fx.Node):
        return table.names.scalar(value.meta["val"])
    return to_name(value)


def _converted(node: fx.Node, ordinary: OpNode) -> OpNode:
    """Return the node of a registered conversion, else the ordinary one."""
    function = get_conversion_fn(ordinary.op_type)
    if function is None:
        return ordinary
    inputs, outputs, names = ordinary.inputs, ordinary.outputs, ordinary.args
    ordinary.inputs = ()  # another node will read them
    info = NodeInfo(
        ordinary.name,
        node.op,
        node.target,
        tuple(node.args),
        dict(node.kwargs),
        list(inputs),
        list(outputs),
        ordinary.attrs,
    )
    converted = function(info)
    if not isinstance(converted, OpNode):
        raise ConversionError(
            f"the conversion registered for {ordinary.op_type} returned {converted!r:.80}, not an OpNode"
        )
    if not converted.has_named_args and converted.inputs == inputs:
        converted.set_inputs(inputs, names)
    converted.origin = ordinary.origin
    return converted


def _expressions(sizes: Sequence[Any]) -> list[Any]:
    return [size.node.expr if is_symbolic(size) else size for size in sizes]


def _present(outputs: tuple[Made, ...]) -> Iterator[TensorMeta]:
    """Yield the tensors among outputs, in order."""
    for output in outputs:
        if isinstance(output, tuple):
            yield from _present(output)
        elif output is not None:
            yield output


def _whole_batch_norm(
    node: fx.Node, op_type: str, inputs: dict[str, TensorMeta], attrs: dict[str, Any], made: list[TensorMeta]
) -> tuple[str, dict[str, TensorMeta], dict[str, Any], list[TensorMeta]]:
    """Restore `batch_norm` in inference, which functionalisation splits, if only its result is read."""
    if node.target is not _NO_TRAINING or any(user.args[1] != 0 for user in node.users):
        return op_type, inputs, attrs, made
    whole = {"training": False, **attrs, "cudnn_enabled": False}
    return "aten.batch_norm.default", inputs, whole, made[:1]
