"""Write one graph as the body of a Python function: a statement per node, in program order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_ir.analysis.dependencies.slices import names_of
from torch_ir.errors import ConversionError
from torch_ir.escaping import in_python
from torch_ir.ir import IR, Branch, Dtype, Expr, FunctionRef, OpNode, Slot, TensorMeta
from torch_ir.ir.graph.io_tree import Tree, leaves
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ir.sizes.symbols import size_conditions, symbols_by_tensor
from torch_ir.ops import effects as facts
from torch_ir.ops.calling import keywords
from torch_ir.ops.guards import OFFSET
from torch_ir.ops.prepare_run import ordered_arguments, returns_one
from torch_ir.ops.schema import Operator, arguments, find_operator, operator_name
from torch_ir.ops.torch_internals import OpOverload, schema_of
from torch_ir.targets.python.source_text import (
    Code,
    attribute,
    call,
    expression,
    free_name,
    is_plain_name,
    literal,
    place,
    solution,
)
from torch_ir.targets.torch.fx_graph import is_default, shows, tuples

_GUARDS = {f"torch_ir.{name}.default": name for name in ("decision", "fixed_shape", "fixed_value", "fixed_attribute")}


@dataclass(frozen=True)
class Function:
    """A function of the source: its name, its size arguments, and whether it returns one value rather than a tuple."""

    name: str
    sizes: Mapping[str, str]
    gives_one: bool

    def size_arguments(self, sizes: Mapping[str, str]) -> list[str]:
        """Return the size arguments of a call, from the sizes known there."""
        return [f"{argument}={expression(size, sizes)}" for size, argument in self.sizes.items()]


class Body:
    """Writes one graph; `helper` requests a helper by name, `functions` are those in scope."""

    def __init__(
        self, ir: IR, taken: set[str], functions: Mapping[str, Function], helper: Callable[[str], str], indent: str
    ) -> None:
        self.ir = ir
        self.taken = taken
        self.functions = functions
        self.helper = helper
        self.indent = indent
        self.lines: list[str] = []
        self.values: dict[TensorMeta, str] = {
            tensor: place(tensor.param.keys[0]) for tensor in ir.params if tensor.param is not None
        }
        self.sizes: dict[str, str] = {}
        self._bound = symbols_by_tensor(ir.symbols.values())
        self._module = ""

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def name_tensor(self, tensor: TensorMeta, name: str = "") -> str:
        """Assign a name to a tensor."""
        self.values[tensor] = name or free_name(tensor.name, self.taken)
        return self.values[tensor]

    def name_size(self, symbol: str) -> str:
        """Assign a name to a size."""
        self.sizes[symbol] = free_name(symbol, self.taken)
        return self.sizes[symbol]

    def bind(self, tensors: Iterable[TensorMeta]) -> None:
        """Define the sizes that these tensors determine."""
        for tensor in tensors:
            for symbol in self._bound.get(tensor, ()):
                size, shown = self.values[tensor], symbol.name
                if symbol.dim is not None:
                    size, shown = f"{size}.shape[{symbol.dim}]", str(tensor.shape[symbol.dim])
                solved = solution(shown, symbol.name, size, self.sizes)
                self.line(f"{self.name_size(symbol.name)} = {solved}")

    def require(self) -> None:
        """Check dtypes, shapes, ranges and constraints of the inputs, and their layout if the model reads it."""
        for tensor in self.ir.graph_inputs:
            shape = tuple(Code(expression(dim, self.sizes)) for dim in tensor.shape)
            facts = [self.values[tensor], literal(Dtype(tensor.dtype)), literal(shape)]
            if place := self.ir.fixed_layout:
                stride = tensor.stride and tuple(Code(expression(step, self.sizes)) for step in tensor.stride)
                facts += [literal(stride), literal(place.removesuffix(OFFSET)), literal(place.endswith(OFFSET))]
            self.lines += call(self.helper("given"), facts, self.indent)
        for text in size_conditions(self.ir):
            if names_in(text).issubset(self.sizes):
                self.line(f"{self.helper('require')}({expression(text, self.sizes)}, {text!r})")

    def calls(self) -> None:
        """Write all nodes."""
        for node in self.ir.nodes:
            if node.origin.module != self._module:
                self._module = node.origin.module
                parts = filter(None, (self._module or "the model itself", node.origin.module_class))
                self.line(in_python(": ".join(parts)))
            self._call(node)
            self.bind(node.outputs)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _call(self, node: OpNode) -> None:
        tensors = {name: Code(self.values[tensor]) for name, tensor in zip(node.args, node.inputs, strict=True)}
        found = find_operator(node.op_type)
        if found is None:
            self._call_function(node, tensors)
            return
        values = keywords(tensors, node.attrs, lambda value: value)
        copies = self._copies(node, found, values)
        name, texts = self._operator(found), self._arguments(node, found, values)
        made = node.outputs[: len(node.outputs) - copies]
        if not made or returns_one(found) or self._gives_as_many(found, made):
            left = self._left(made, is_list=not returns_one(found))
            self.lines += call(name, texts, self.indent, left, _types(made))
        else:
            flat, left = self.helper("flat"), self._left(made, is_list=True)
            self.lines += call(flat, [f"{name}({', '.join(texts)})"], self.indent, left, _types(made))

    def _call_function(self, node: OpNode, tensors: Mapping[str, Code]) -> None:
        """Write a call of a function of the graph."""
        reference = node.attrs["function"]
        function, body = self.functions[reference], self.ir.functions[reference]
        texts = [str(tensors[tensor.name]) for tensor in body.graph_inputs]
        texts += function.size_arguments(self.sizes)
        left = self._left(node.outputs, is_list=not function.gives_one)
        self.lines += call(function.name, texts, self.indent, left, _types(node.outputs))

    def _left(self, made: Sequence[TensorMeta], is_list: bool) -> str:
        """Return the left side of an assignment; unused results have no name."""
        names = [self.name_tensor(tensor) if tensor.consumers or tensor in self._bound else "_" for tensor in made]
        return f"({names[0]},)" if is_list and len(names) == 1 else ", ".join(names)

    def _gives_as_many(self, found: Operator, made: Sequence[TensorMeta]) -> bool:
        """Whether the operator returns exactly these results, separately or in one list."""
        if not isinstance(found, OpOverload):
            return False
        kinds = [str(result.type) for result in schema_of(found).returns]
        return len(kinds) == 1 or (len(kinds) == len(made) and not any("List" in kind for kind in kinds))

    def _operator(self, found: Operator) -> str:
        name = operator_name(found)
        if name in _GUARDS:
            return self.helper(_GUARDS[name])
        namespace, *rest = name.split(".")
        text = "aten" if namespace == "aten" else attribute("torch.ops", namespace)
        for part in rest:
            text = attribute(text, part)
        return text

    def _arguments(self, node: OpNode, found: Operator, values: Mapping[str, Any]) -> list[str]:
        """Return leading tensors as positional arguments, all others by name; for control flow all are positional."""
        places, known, others = ordered_arguments(node, found, values, lambda default: default)
        unfit = next((name for name in others if not is_plain_name(name)), None)
        if unfit is not None:
            raise ConversionError(f"{node!r} has an argument {unfit!r:.60}, which is not a Python name")
        texts = {name: value for name, value in known.items() if not is_default(found, name, value)}
        if not isinstance(found, OpOverload):
            return [*map(self._value, map(tuples, places)), *self._named({**texts, **others})]
        names = [argument.name for argument in arguments(found) if not argument.keyword_only]
        first = _by_place(names, places)
        later = {n: v for n, v in zip(names[first:], places[first:], strict=True) if not is_default(found, n, v)}
        return [*map(self._value, places[:first]), *self._named({**later, **texts})]

    def _named(self, values: Mapping[str, Any]) -> Iterator[str]:
        return (f"{name}={self._value(value)}" for name, value in values.items())

    def _value(self, value: Any) -> str:
        return literal(self._coded(value))

    def _coded(self, value: Any) -> Any:
        """Replace sizes and functions in an attribute by source code."""
        if isinstance(value, Expr):
            return Code(expression(value, self.sizes))
        if isinstance(value, FunctionRef):
            function = self.functions[value]
            sizes = ", ".join(function.size_arguments(self.sizes))
            return Code(f"lambda *given: {function.name}(*given, {sizes})" if sizes else function.name)
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._coded, value))
        return {key: self._coded(item) for key, item in value.items()} if isinstance(value, dict) else value

    def _copies(self, node: OpNode, found: Operator, values: dict[str, Any]) -> int:
        """Make an in-place operator write to copies, which are its last outputs; return their number."""
        if not (isinstance(found, OpOverload) and facts.gives_new_values(node)):
            return 0
        written = [name for name in facts.mutated_arguments(found) if values.get(name) is not None]
        count = sum(len(values[name]) if isinstance(values[name], list) else 1 for name in written)
        outputs = iter(node.outputs[len(node.outputs) - count :])

        def copied(value: Any) -> Code:
            tensor = next(outputs)
            self.lines += call(
                "aten.clone.default", [str(value)], self.indent, self.name_tensor(tensor), _types([tensor])
            )
            return Code(self.values[tensor])

        for name in written:
            values[name] = list(map(copied, values[name])) if isinstance(values[name], list) else copied(values[name])
        return count

    # -- results --------------------------------------------------------------------------------------------------

    def write_back(self) -> None:
        """Write new values to inputs and buffers that the model changes; first copy outputs that alias the old ones."""
        places = {target: self.values[target] for target, _ in self.ir.mutations}
        if places:
            self.line("# tensors that the model changes")
        for tensor in dict.fromkeys(self.ir.returns.inputs):
            if shows(tensor, places.keys()):
                before = self.values[tensor]
                self.lines += call("aten.clone.default", [before], self.indent, self.name_tensor(tensor))
        for target, value in self.ir.mutations:
            self.lines += call("aten.copy_.default", [places[target], self.values[value]], self.indent)

    def returned(self, tree: Tree) -> str:
        """Return the source of the outputs, nested as in the model."""
        if isinstance(tree, Slot):
            return self.values[self.ir.graph_outputs[tree]]
        if not isinstance(tree, Branch):
            return self._value(tree)
        items = [Code(self.returned(item)) for item in tree.items]
        if tree.kind == "dict" or (tree.kind == "object" and tree.keys):
            made = literal(dict(zip(tree.keys, items, strict=True)))
            return made if tree.kind == "dict" else f"{self.helper('Record')}({made})"
        if tree.kind == "tuple" and tree.keys:
            name = tree.type_name.rpartition(".")[2]
            texts = f"{literal(name if is_plain_name(name) else 'Tuple')}, {literal(tree.keys)}"
            return f"{self.helper('named_tuple')}({texts})({', '.join(items)})"
        return literal(items if tree.kind == "list" else tuple(items))


def sizes_read(ir: IR) -> set[str]:
    """Return the symbols that a graph uses but does not get from its own tensors."""
    read = {name for node in ir.nodes for name in names_of(node.attrs)}
    read |= {name for _, leaf in leaves(ir.output_tree) for name in names_of(leaf)}
    for symbol in ir.symbols.values():
        if symbol.tensor is not None and symbol.dim is not None:
            read |= names_in(symbol.tensor.shape[symbol.dim])
    for body in ir.functions.values():
        read |= sizes_read(body)
    return read - ir.symbols.keys()


def _by_place(names: Sequence[str], values: Sequence[Any]) -> int:
    """Return the number of positional arguments: leading tensors, and all up to a name reserved by Python."""
    count = 0
    while count < len(values) and _holds_tensor(values[count]):
        count += 1
    return max([count, *(index + 1 for index, name in enumerate(names) if not is_plain_name(name))])


def _holds_tensor(value: Any) -> bool:
    return any(map(_holds_tensor, value)) if isinstance(value, list) else isinstance(value, Code)


def _types(tensors: Sequence[TensorMeta]) -> str:
    """Return the types of the results of a statement as a comment."""
    types = (f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]" for tensor in tensors)
    return in_python(", ".join(types)) if tensors else ""
