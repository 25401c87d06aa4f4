"""Compile a checked graph to straight-line Python, once, and run it many times.

Every line calls one operator with its arguments in schema order; a value is deleted right after its last use. A weight
in a file is read right before its first use. The program text contains only names generated here (`v3`, `f1`, `c7`),
never a string of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torch_ir.errors import ExecutionError, GuardError, first_line
from torch_ir.ir import IR, Device, Expr, FunctionRef, OpNode, Symbol, TensorMeta, evaluate
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.io_tree import Tree, rebuild
from torch_ir.ir.sizes.expressions import Number
from torch_ir.ir.sizes.symbols import solve, symbols_by_tensor
from torch_ir.ops import effects as facts
from torch_ir.ops.direct_calls import direct_call
from torch_ir.ops.prepare_run import on_copies, ordered_arguments, present, returns_one
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import Argument, Operator, arguments, find_operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.ops.torch_types import to_torch
from torch_ir.run.stored import StoredTensor, loaded

Sizes = dict[str, Number]
Watch = Callable[[TensorMeta, Any, Sizes], None]  # called with every output of a node and every operand of a function
_serial = itertools.count()


class Program:
    """Compiled Python for a list of nodes: `given` tensors in, `wanted` tensors out.

    With `lazy`, given values may be in files. `groups` are the process groups of the mesh axes. `reused` maps nodes to
    operators that compute the same in the memory of their first argument.
    """

    def __init__(
        self,
        ir: IR,
        nodes: Sequence[OpNode],
        given: Sequence[TensorMeta],
        wanted: Sequence[TensorMeta],
        device: torch.device | None = None,
        watch: Watch | None = None,
        lazy: bool = False,
        groups: Mapping[str, str] | None = None,
        reused: Mapping[OpNode, OpOverload] | None = None,
    ) -> None:
        self.nodes = nodes
        writer = _Writer(ir, device, watch, lazy, groups or {}, reused or {})
        source = writer.write(nodes, given, wanted)
        self._file = f"<torch_ir program {next(_serial)}>"
        self._node_of_line = writer.node_of_line
        self._functions = list(writer.functions.values())
        exec(compile(source, self._file, "exec"), writer.namespace)
        self._function: Callable[..., list[Any]] = writer.namespace["program"]

    def __call__(self, *values: Any) -> list[Any]:
        """Return the wanted values; the last argument is the sizes."""
        try:
            return self._function(*values)
        except GuardError:  # names the place in the model
            raise
        except ExecutionError as error:  # inside a function: add the call
            raise ExecutionError(f"{error}; in {_place(self._node(error))}", node=error.node) from error
        except Exception as error:  # an operator failed: add the node
            raise ExecutionError(f"{_place(node := self._node(error))}: {first_line(error)}", node=node) from error

    def places(self) -> dict[str, dict[int, OpNode]]:
        """Map the lines of this program, and of those that it calls, to nodes, by file name in tracebacks."""
        found = {self._file: self._node_of_line}
        for function in self._functions:
            found.update(function.program.places())
        return found

    def _node(self, error: BaseException) -> OpNode | None:
        """Return the node of this program whose line raised an error."""
        trace, line = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._file:
                line = trace.tb_lineno
            trace = trace.tb_next
        return self._node_of_line.get(line)


def _place(node: OpNode | None) -> str:
    if node is None:
        return "the graph"
    place = [f"module {node.origin.module}" if node.origin.module else "", node.origin.source]
    message = ", ".join(filter(None, place))
    return f"{node!r} ({message})" if message else repr(node)


class _Writer:
    """Writes the text of one program and collects the values of its names."""

    def __init__(
        self,
        ir: IR,
        device: torch.device | None,
        watch: Watch | None,
        lazy: bool,
        groups: Mapping[str, str],
        reused: Mapping[OpNode, OpOverload],
    ) -> None:
        self.ir = ir
        self.reused = reused
        self.device = device
        self.watch = watch
        self.lazy = lazy
        self.groups = groups
        self.namespace: dict[str, Any] = {"present": present, "given": _given, "solve": solve, "watch": watch}
        self.namespace["read"] = lambda value: loaded(value, device) if isinstance(value, StoredTensor) else value
        self.node_of_line: dict[int, OpNode] = {}
        self.names: dict[TensorMeta, str] = {}
        self.functions: dict[IR, Function] = {}

    def write(self, nodes: Sequence[OpNode], given: Sequence[TensorMeta], wanted: Sequence[TensorMeta]) -> str:
        lines = [f"def program({''.join(f'{self._name(tensor)}, ' for tensor in given)}sizes):"]
        bound = symbols_by_tensor(self.ir.symbols.values())
        dying = _last_uses(nodes, wanted)
        unread = set(given) if self.lazy else set[TensorMeta]()
        for node in nodes:
            if not self._passes_on(node):
                lines += self._reads(node.inputs, unread)
            lines.append(f"    {self._statement(node)}")
            self.node_of_line[len(lines)] = node
            for tensor in node.outputs:
                lines += [f"    {self._binding(known, tensor)}" for known in bound.get(tensor, ())]
            if self.watch is not None:
                lines += [f"    watch({self._constant(out)}, {self._name(out)}, sizes)" for out in node.outputs]
            if dying[node]:
                lines.append(f"    del {', '.join(map(self._name, dying[node]))}")
        lines += self._reads(wanted, unread)
        lines.append(f"    return [{', '.join(map(self._name, wanted))}]")
        return "\n".join(lines)

    def _reads(self, tensors: Iterable[TensorMeta], unread: set[TensorMeta]) -> list[str]:
        """Return the lines that read values which may still be in a file."""
        needed = [tensor for tensor in dict.fromkeys(tensors) if tensor in unread]
        unread.difference_update(needed)
        return [f"    {name} = read({name})" for name in map(self._name, needed)]

    def _passes_on(self, node: OpNode) -> bool:
        """Whether a node only passes its inputs to a body, which reads files itself."""
        return node.is_call and executor_of(node) is None and find_operator(node.op_type) is None

    def _name(self, tensor: TensorMeta) -> str:
        return self.names.setdefault(tensor, f"v{len(self.names)}")

    def _binding(self, symbol: Symbol, tensor: TensorMeta) -> str:
        """Return the statement that binds a symbol: to a scalar, a dimension, or the solution of its expression."""
        name = self._constant(symbol.name)
        if symbol.dim is None:
            return f"sizes[{name}] = {self._name(tensor)}"
        size = f"{self._name(tensor)}.shape[{symbol.dim}]"
        if tensor.shape[symbol.dim] != symbol.name:
            size = f"solve({self._constant(tensor.shape[symbol.dim])}, {name}, {size}, sizes)"
        return f"sizes[{name}] = {size}"

    def _constant(self, value: Any, prefix: str = "c") -> str:
        name = f"{prefix}{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _statement(self, node: OpNode) -> str:
        call, gives_one = self._call(node)
        names = [self._name(tensor) for tensor in node.outputs]
        if not names:
            return call
        return f"{names[0]} = {call}" if gives_one else f"{', '.join(names)}, = present({call})"

    def _call(self, node: OpNode) -> tuple[str, bool]:
        """Return the call, and whether it returns the single output rather than a list."""
        custom = executor_of(node)
        if custom is not None:
            inputs = ", ".join(map(self._name, node.inputs))
            attrs = self._constant(self._resolver(node.attrs, list))  # copied for every call, as the user may modify it
            return f"given({self._constant(custom, 'f')}([{inputs}], {attrs}(sizes)))", False
        operator = find_operator(node.op_type)
        if operator is None:  # `check_operators` came first, so this calls a function
            body = self._function(node.attrs["function"])
            operands = [self._name(node[tensor.name]) for tensor in body.ir.graph_inputs]
            if self.watch is not None or body.ir.symbols:
                return f"{self._attribute(node.attrs['function'])}({', '.join(operands)})", False
            results = f"{self._constant(body.program, 'f')}({', '.join([*operands, 'sizes'])})"
            return (f"{results}[0]", True) if len(node.outputs) == 1 else (results, False)
        if node in self.reused:
            texts = self._arguments(node, self.reused[node])
            return f"{self._constant(self.reused[node], 'f')}({', '.join(texts)})", True
        texts = self._arguments(node, operator)
        if isinstance(operator, OpOverload) and facts.gives_new_values(node):
            return f"{self._constant(on_copies(operator), 'f')}({', '.join(texts)})", False
        function = direct_call(node, operator) if isinstance(operator, OpOverload) else operator
        return f"{self._constant(function, 'f')}({', '.join(texts)})", returns_one(operator)

    def _arguments(self, node: OpNode, operator: Operator) -> list[str]:
        """Return the text of each argument of a call, in schema order; defaults at the end are omitted."""
        places, known, others = ordered_arguments(node, operator, self._values(node), self._constant)
        if isinstance(operator, OpOverload):
            given = {name.partition(".")[0] for name in node.args}
            expected = arguments(operator)
            usual = [argument.name not in given and _is_usual(node, argument) for argument in expected]
            known = {name: text for name, text in known.items() if not usual[[a.name for a in expected].index(name)]}
            while places and usual[len(places) - 1]:
                places.pop()
        keywords = [f"{name}={text}" for name, text in known.items()]
        return [*places, *keywords, *(f"**{{{self._constant(name)}: {text}}}" for name, text in others.items())]

    def _values(self, node: OpNode) -> dict[str, str]:
        """Return the text of every argument; lists of tensors are assembled from their elements."""
        flat = {name: self._name(tensor) for name, tensor in zip(node.args, node.inputs, strict=True)}
        flat.update((name, self._attribute(value)) for name, value in node.attrs.items())
        if facts.is_collective(node.op_type) and "group_name" in node.attrs:
            flat["group_name"] = self._constant(self._group_of(node, node.attrs["group_name"]))
        return {name: _nested(value) for name, value in _group(flat).items()}

    def _group_of(self, node: OpNode, axis: str) -> str:
        """Return the process group of an axis; a graph cannot name one itself."""
        if axis not in self.groups:
            message = f"{node!r} communicates with the other ranks of axis {axis!r}"
            raise ExecutionError(f"{message}; use run_sharded, or pass mesh= to IRExecutor")
        return self.groups[axis]

    def _attribute(self, value: Any) -> str:
        if value is None or value is True or value is False or type(value) is int:
            return repr(value)
        if any(isinstance(found, (Expr, FunctionRef)) for found in values_in(value)):
            return f"{self._constant(self._resolver(value))}(sizes)"
        return self._constant(self._resolver(value)({}))

    def _resolver(self, value: Any, sequence: type = tuple) -> Callable[[Sizes], Any]:
        """Return a function from sizes to the torch value of an attribute."""
        if isinstance(value, Expr):
            return lambda sizes: evaluate(value, sizes)
        if isinstance(value, FunctionRef):
            return self._function(value).within
        if isinstance(value, (list, tuple)):
            parts = [self._resolver(item, sequence) for item in value]
            return lambda sizes: sequence(part(sizes) for part in parts)
        if isinstance(value, dict):
            entries = {key: self._resolver(item, sequence) for key, item in value.items()}
            return lambda sizes: {key: entry(sizes) for key, entry in entries.items()}
        if isinstance(value, Device) and self.device is not None and value == self.ir.device:
            return lambda sizes: self.device
        converted = to_torch(value)
        return lambda sizes: converted

    def _function(self, name: FunctionRef) -> Function:
        """Return a function of the graph, compiled once."""
        body = self.ir.functions[name]
        if body not in self.functions:
            self.functions[body] = Function(body, self.device, self.watch, self.lazy, self.groups)
        return self.functions[body]


class Function:
    """A function of the graph as a callable for operators."""

    def __init__(
        self, ir: IR, device: torch.device | None, watch: Watch | None, lazy: bool, groups: Mapping[str, str]
    ) -> None:
        self.ir = ir
        self.watch = watch
        self.program = Program(ir, ir.nodes, ir.graph_inputs, ir.graph_outputs, device, watch, lazy, groups)
        self.results: Tree = ir.output_tree

    def within(self, sizes: Sizes) -> Callable[..., Any]:
        """Return the function for a call at which `sizes` are known."""

        def call(*given: Any) -> Any:
            operands = [_as_declared(*pair) for pair in zip(self.ir.graph_inputs, given, strict=True)]
            known = given_sizes(self.ir, operands, sizes)
            if self.watch is not None:
                for tensor, operand in zip(self.ir.graph_inputs, operands, strict=True):
                    self.watch(tensor, operand, known)
            outputs = self.program(*operands, known)
            return rebuild(self.results, outputs, lambda leaf: computed(leaf, known))

        return call


def _as_declared(tensor: TensorMeta, value: Any) -> Any:
    """Convert an operand: flex attention passes int64 indices though it is captured with int32."""
    is_index = isinstance(value, torch.Tensor) and (value.dtype, tensor.dtype) == (torch.int64, "int32")
    return value.int() if is_index else value


def given_sizes(ir: IR, values: Iterable[Any], outer: Sizes) -> Sizes:
    """Return the sizes of the enclosing graph, and those read from the operands."""
    place = dict(zip(ir.graph_inputs, values, strict=True))
    sizes = dict(outer)
    for symbol in ir.symbols.values():
        if symbol.tensor in place:
            value = place[symbol.tensor]
            expression = symbol.tensor.shape[symbol.dim] if symbol.dim is not None else symbol.name
            found = solve(expression, symbol.name, value if symbol.dim is None else value.shape[symbol.dim], outer)
            if found is None:
                raise ExecutionError(f"operand {symbol.tensor.name!r} has a size that is not {expression}")
            sizes[symbol.name] = found
    return sizes


def computed(value: Any, sizes: Sizes) -> Any:
    """Convert a leaf of a structure: evaluate a symbolic number, convert a typed name to torch's object."""
    return evaluate(value, sizes) if isinstance(value, Expr) else to_torch(value)


def writes_in_place(ir: IR) -> bool:
    """Whether any node, here or in a function, writes to its inputs."""
    return any(map(facts.writes_in_place, ir.all_nodes()))


def _last_uses(nodes: Sequence[OpNode], wanted: Sequence[TensorMeta]) -> dict[OpNode, list[TensorMeta]]:
    """Map each node to the values to delete after it: read for the last time, or never read."""
    kept = set(wanted)
    dying: dict[OpNode, list[TensorMeta]] = {}
    for node in reversed(nodes):
        last = [tensor for tensor in dict.fromkeys((*node.inputs, *node.outputs)) if tensor not in kept]
        kept.update(last)
        dying[node] = last
    return dying


def _given(result: Any) -> Any:
    """Check the result of a user's executor."""
    if isinstance(result, (torch.Tensor, list, tuple)):
        return result
    raise TypeError(f"its executor returned {result!r:.60}, not a list of tensors")


def _is_usual(node: OpNode, argument: Argument) -> bool:
    """Whether an attribute is exactly its default, and plain: in Python, 1 equals True and 1.0."""
    value, default = node.attrs.get(argument.name, argument.default), argument.default
    is_same = type(value) is type(default) and isinstance(value, (bool, int, type(None))) and value == default
    return argument.has_default and is_same


def _group(flat: Mapping[str, str]) -> dict[str, Any]:
    """`{"tensors.0": "v1", "tensors.1": "v2"}` -> `{"tensors": {"0": "v1", "1": "v2"}}`."""
    grouped: dict[str, Any] = {}
    for name, text in flat.items():
        *outer, last = name.split(".")
        place = grouped
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = text
    return grouped


def _nested(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return f"({''.join(f'{_nested(value[str(index)])}, ' for index in range(len(value)))})"
