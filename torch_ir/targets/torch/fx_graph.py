"""Write nodes as a torch.fx graph: one operator call each, in program order.

The source that fx generates contains names that fx sanitises and values that it quotes; no string of a file becomes
code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from keyword import iskeyword
from typing import Any

import torch
from torch import fx, nn

from torch_ir.errors import ConversionError
from torch_ir.ir import IR, Branch, Expr, FunctionRef, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Record, Tree, rebuild, tuple_class
from torch_ir.ir.sizes.expressions import FUNCTIONS, translate
from torch_ir.ir.sizes.symbols import symbols_by_tensor
from torch_ir.ops import effects as facts
from torch_ir.ops.calling import keywords
from torch_ir.ops.prepare_run import on_copies, ordered_arguments, present, returns_one
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import Operator, arguments, find_operator
from torch_ir.ops.torch_internals import SYMBOLIC_MATH, OpOverload, schema_of
from torch_ir.ops.torch_types import to_torch

_SIZE = torch.ops.aten.sym_size.int
_COPY = torch.ops.aten.copy_.default
_CLONE = torch.ops.aten.clone.default


def is_name(text: Any) -> bool:
    """Whether a text is a valid argument name in Python."""
    return isinstance(text, str) and text.isidentifier() and not iskeyword(text)


def _choice(condition: Any, yes: Any, no: Any) -> Any:
    return yes if condition else no


# Python function on numbers -> equivalent that also accepts torch's symbolic numbers
_SYMBOLIC: dict[Callable[..., Any], Callable[..., Any]] = {
    min: torch.sym_min,
    max: torch.sym_max,
    int: torch.sym_int,
    float: torch.sym_float,
    operator.not_: torch.sym_not,
    FUNCTIONS["where"]: _choice,
    **{getattr(math, name): function for name, function in SYMBOLIC_MATH.items()},
}


def write_program(
    ir: IR,
    nodes: Sequence[OpNode],
    given: Sequence[TensorMeta],
    wanted: Sequence[TensorMeta] | None = None,
    *,
    writes_back: bool = False,
) -> fx.GraphModule:
    """Return a module from `given` tensors to a list of the `wanted`, or to the model's outputs and side effects.

    With `writes_back`, a module for `wanted` has the side effects, too.
    """
    writer = _Writer(ir)
    for tensor in given:
        writer.add_input(tensor)
    for tensor in given:
        writer.bind(tensor)
    for node in nodes:
        writer.call(node)
    if wanted is None or writes_back:
        writer.write_back()
    if wanted is None:
        return writer.as_module(writer.returned(ir.output_tree))
    return writer.as_module([writer.values[tensor] for tensor in wanted])


class _Writer:
    """Writes one graph; `values` and `sizes` map tensors and symbols to fx nodes or numbers."""

    def __init__(self, ir: IR) -> None:
        self.ir = ir
        self.graph = fx.Graph()
        self.values: dict[TensorMeta, Any] = {}
        self.sizes: dict[str, Any] = {}
        self.bound = symbols_by_tensor(ir.symbols.values())
        self.bodies: dict[str, fx.GraphModule] = {}

    def add_input(self, tensor: TensorMeta) -> None:
        """Add an input."""
        self.values[tensor] = node = self.graph.create_node("placeholder", "given", name=tensor.name)
        node.target = node.name  # sanitised by fx

    def bind(self, tensor: TensorMeta) -> None:
        """Define the symbols that a tensor determines."""
        for symbol in self.bound.get(tensor, ()):
            value = self.values[tensor]
            size = value if symbol.dim is None else self._compute(_SIZE, value, symbol.dim)
            shown = symbol.name if symbol.dim is None else tensor.shape[symbol.dim]
            self.sizes[symbol.name] = size if shown == symbol.name else self._solved(shown, symbol.name, size)

    def call(self, node: OpNode) -> None:
        """Write a node."""
        made, gives_one = self._called(node)
        for index, tensor in enumerate(node.outputs):
            self.values[tensor] = made if gives_one else self._compute(operator.getitem, made, index)
            self.bind(tensor)

    def _called(self, node: OpNode) -> tuple[fx.Node, bool]:
        """Write a call; also return whether it returns its only output directly rather than in a list."""
        tensors = {name: self.values[tensor] for name, tensor in zip(node.args, node.inputs, strict=True)}
        custom = executor_of(node)
        if custom is not None:
            return self._compute(_named_executor(custom), list(tensors.values()), self._attribute(node.attrs)), False
        found = find_operator(node.op_type)
        assert found is not None  # calls are inlined, and `check_operators` ran before
        values = keywords(tensors, node.attrs, self._attribute)
        places, known, others = ordered_arguments(node, found, values, lambda default: default)
        unfit = next((name for name in others if not is_name(name)), None)
        if unfit is not None:
            raise ConversionError(f"{node!r} has an argument {unfit!r:.60}, which is not a Python name")
        explicit = {name: value for name, value in known.items() if not is_default(found, name, value)}
        target: Any = on_copies(found) if isinstance(found, OpOverload) and facts.gives_new_values(node) else found
        args = places if isinstance(found, OpOverload) else map(tuples, places)
        made = self.graph.create_node("call_function", target, tuple(args), {**explicit, **others}, name=node.name)
        if target is found and returns_one(found):
            return made, True
        is_plain = isinstance(found, OpOverload) and len(schema_of(found).returns) == len(node.outputs) > 1
        return (made if is_plain or not node.outputs else self._compute(present, made)), False

    def _attribute(self, value: Any) -> Any:
        """Convert an attribute to torch's types."""
        if isinstance(value, Expr):
            return self._number(value)
        if isinstance(value, FunctionRef):
            return self.graph.get_attr(self._body(value))
        if isinstance(value, (list, tuple)):
            return [self._attribute(item) for item in value]
        if isinstance(value, dict):
            return {key: self._attribute(item) for key, item in value.items()}
        return to_torch(value)

    def _body(self, ref: FunctionRef) -> str:
        """Return the name of the submodule for a function."""
        names = {name: f"body_{index}" for index, name in enumerate(self.ir.functions)}
        if names[ref] not in self.bodies:
            body = self.ir.functions[ref]
            self.bodies[names[ref]] = write_program(body, body.nodes, body.graph_inputs)
        return names[ref]

    # -- numbers --------------------------------------------------------------------------------------------------

    def _number(self, text: str | int) -> Any:
        """Return the value of an expression: a number, or the node that computes it."""
        return translate(text, self.sizes, lambda one, args: self._compute(_SYMBOLIC.get(one, one), *args))

    def _compute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Write a call, or return its result if all operands are known."""
        if any(isinstance(arg, (fx.Node, list)) for arg in args):
            return self.graph.call_function(function, args)
        return function(*args)

    def _solved(self, expression: int | str, name: str, size: Any) -> Any:
        """Return the value of a symbol that makes a linear expression of it equal to a size."""
        ends = []
        for value in (0, 1):
            self.sizes[name] = value
            ends.append(self._number(expression))
        slope = self._compute(operator.sub, ends[1], ends[0])
        return self._compute(operator.floordiv, self._compute(operator.sub, size, ends[0]), slope)

    # -- results --------------------------------------------------------------------------------------------------

    def write_back(self) -> None:
        """Write new values to inputs and buffers that the model changes; first copy outputs that alias the old ones."""
        places = {target: self.values[target] for target, _ in self.ir.mutations}
        for tensor in dict.fromkeys(self.ir.returns.inputs):
            if shows(tensor, places.keys()):
                self.values[tensor] = self._compute(_CLONE, self.values[tensor])
        for target, value in self.ir.mutations:
            self._compute(_COPY, places[target], self.values[value])

    def returned(self, tree: Tree) -> Any:
        """Return the outputs, nested as in the model."""
        if isinstance(tree, Slot):
            return self.values[self.ir.graph_outputs[tree]]
        if not isinstance(tree, Branch):
            return self._attribute(tree)
        items = [self.returned(item) for item in tree.items]
        if tree.kind == "object" and tree.keys:
            return self.graph.call_function(Record, (dict(zip(tree.keys, items, strict=True)),))
        if tree.kind == "tuple" and tree.keys:
            # as a value, fx writes it with an undefined name: in a dict, for example
            return self.graph.call_function(tuple_class(tree), tuple(items))
        return rebuild(replace(tree, items=tuple(map(Slot, range(len(items))))), items)

    def as_module(self, result: Any) -> fx.GraphModule:
        """Return the graph as a module with this result."""
        self.graph.output(result)
        root = nn.Module()
        for name, body in self.bodies.items():
            root.add_module(name, body)
        return fx.GraphModule(root, self.graph)


def _named_executor(executor: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's executor in a named function, which fx requires."""

    def call(inputs: list[Any], attrs: dict[str, Any]) -> Any:
        return present(executor(inputs, attrs))

    return call


def is_default(found: Operator, name: str, value: Any) -> bool:
    """Whether an argument equals its default and can be omitted; torch.compile takes no keywords of control flow."""
    argument = next(argument for argument in arguments(found) if argument.name == name)
    return argument.has_default and type(value) is type(argument.default) and bool(value == argument.default)


def tuples(value: Any) -> Any:
    """Convert lists to tuples, which torch's control flow requires."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def shows(tensor: TensorMeta, targets: Collection[TensorMeta]) -> bool:
    """Whether a tensor is one of these or may be a view of one."""
    waiting = [tensor] if targets else []
    while waiting:
        tensor = waiting.pop()
        if tensor in targets:
            return True
        maker = tensor.producer
        found = find_operator(maker.op_type) if maker is not None else None
        if maker is not None and not (isinstance(found, OpOverload) and not facts.may_alias(found)):
            waiting += maker.inputs
    return False
