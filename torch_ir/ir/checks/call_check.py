"""Check the calls of a graph: operator names, arguments, attributes, function calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.checks.check_context import CheckContext
from torch_ir.ir.checks.limits import allow_more
from torch_ir.ir.graph.attr_types import (
    DTYPES,
    LAYOUTS,
    MEMORY_FORMATS,
    Device,
    Dtype,
    FunctionRef,
    Layout,
    MemoryFormat,
    is_device,
)
from torch_ir.ir.graph.name_grammar import bad_name, is_line
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.json.json_values import MAX_NESTING, PLAIN, TAGS
from torch_ir.ir.sizes.expressions import Expr

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_LIST_LEVELS = 8  # nested lists of tensors: `tensors.0.1`
_CLOSED: dict[type, Callable[[str], bool]] = {
    Dtype: DTYPES.__contains__,
    Device: is_device,
    Layout: LAYOUTS.__contains__,
    MemoryFormat: MEMORY_FORMATS.__contains__,
}


def check_calls(ir: IR, context: CheckContext) -> None:
    """Check operators and arguments; the names of nodes with an already checked signature are skipped."""
    known: dict[tuple[Any, ...], list[str]] = {}  # by signature: the attributes that are not plain
    most = context.limits.list_length
    number = -1
    try:
        for number, node in enumerate(ir.nodes):  # noqa: B007  # used in the error handler
            args, attrs, count = node._args, node.attrs, len(node.inputs)
            if args and len(args) != count:
                message = f"{node!r:.200} has {count} inputs, but {len(args)} argument names"
                raise GraphError(message, "$.args", rule="R7")
            signature = (node.op_type, args or count, *attrs, *map(type, attrs.values()))
            others = known.get(signature)
            if others is None:
                if count > most:
                    raise too_long(node, "inputs", count, most)
                _check_names(node, context.limits.name_length)
                others = known[signature] = [name for name, value in attrs.items() if type(value) not in PLAIN]
            for name in others:
                if not _is_simple(attrs[name], most):
                    _Values(node, context, ir.functions).check(attrs[name], f"$.attrs.{name:.200}")
            if "function" in attrs and node.is_call:
                _check_function_call(node, ir.functions[attrs["function"]])
    except GraphError as error:
        error.prefix(f"$.nodes[{number}]", node=node.name)
        raise


def too_long(node: OpNode, key: str, count: int, most: int) -> GraphError:
    """Return the error for a node with too many inputs or outputs."""
    message = f"{node!r:.200} has {count} {key}, more than {most}"
    return GraphError(message, f"$.{key}", rule="R2", hint=allow_more("list_length"))


def _check_names(node: OpNode, longest: int) -> None:
    if not is_line(node.op_type, longest) or node.op_type == "return":
        message = f"{node!r:.200} has an invalid operator name"
        raise bad_name(node.op_type, message, "$.op_type", longest)
    names = [*node.args, *node.attrs]
    for index, name in enumerate(names):
        if not is_line(name, longest) or name.count(".") > _LIST_LEVELS:
            message = f"{node!r:.200} has an invalid argument name {name!r:.80}"
            raise bad_name(name, message, _argument_path(node, index), longest)
    known = set(names)
    if len(known) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        path = _argument_path(node, len(names) - 1 - names[::-1].index(twice))
        raise GraphError(f"{node!r:.200} has the argument {twice!r:.80} twice", path, rule="R8")
    _check_elements(node, known)


def _argument_path(node: OpNode, index: int) -> str:
    """Return the JSON path of an argument, by its index among inputs and attributes."""
    inputs = len(node.inputs)
    return f"$.args[{index}]" if index < inputs else f"$.attrs.{list(node.attrs)[index - inputs]!s:.200}"


def _check_elements(node: OpNode, names: set[str]) -> None:
    """Check that list elements are numbered from 0 without gaps: `tensors.0`, `tensors.1`."""
    elements: dict[str, set[str]] = {}
    for name in names:
        while "." in name:
            name, _, index = name.rpartition(".")
            elements.setdefault(name, set()).add(index)
    for name, found in elements.items():
        if name in names or found != set(map(str, range(len(found)))):
            listed = ", ".join(sorted(found)[:10])
            message = f"{node!r:.200} has elements {listed:.200} of {name!r:.80}; expected consecutive numbers from 0"
            raise GraphError(message, "$.args", rule="R11")


def _is_simple(value: Any, most: int) -> bool:
    """Whether this is a common valid attribute, such as a list of numbers or a dtype, that needs no further check."""
    kind = type(value)
    if kind is list:
        return len(value) <= most and PLAIN.issuperset(map(type, value))
    return kind in _CLOSED and _CLOSED[kind](value)


class _Values:
    """Checks the values of a node's attributes."""

    def __init__(self, node: OpNode, context: CheckContext, functions: Mapping[str, IR]) -> None:
        self._node, self._context, self._functions = node, context, functions

    def check(self, value: Any, path: str, depth: int = 0) -> None:
        kind = type(value)
        if kind in PLAIN or kind is complex:
            return
        if kind in TAGS:
            self._check_tagged(value, f"{path}.{TAGS[kind]}")
        elif isinstance(value, (list, tuple, dict)):
            self._check_size(value, path, depth)
            if isinstance(value, dict):
                for key, item in value.items():
                    self.check(item, f"{path}.{key!s:.200}", depth + 1)
            elif not PLAIN.issuperset(map(type, value)):
                self._check_items(value, path, depth)
        else:
            message = f"{self._node!r:.200} has an attribute {value!r:.80} of type {kind.__name__}"
            raise GraphError(message, path, rule="R11")

    def _check_items(self, items: Sequence[Any], path: str, depth: int) -> None:
        index = 0
        try:
            for index, item in enumerate(items):  # noqa: B007  # used in the error handler
                self.check(item, "$", depth + 1)
        except GraphError as error:
            error.prefix(f"{path}[{index}]")
            raise

    def _check_size(self, value: Any, path: str, depth: int) -> None:
        most = self._context.limits.list_length
        if depth > MAX_NESTING:
            message = f"{self._node!r:.200} has an attribute that is nested deeper than {MAX_NESTING} levels"
            raise GraphError(message, path, rule="R2")
        if len(value) > most:
            message = f"{self._node!r:.200} has an attribute of {len(value)} items, more than {most}"
            raise GraphError(message, path, rule="R2", hint=allow_more("list_length"))

    def _check_tagged(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind is Expr:
            self._context.check_expression(value, f"{self._node!r:.200}", path)
        elif kind is FunctionRef:
            if value not in self._functions:
                message = f"{self._node!r:.200} calls {str(value)!r:.80}, which is not a function"
                raise GraphError(message, path, rule="R8", hint=suggestion(value, self._functions))
        elif not _CLOSED[kind](value):
            message = f"{self._node!r:.200} has an unknown attribute value {value!r:.80}"
            raise GraphError(message, path, rule="R5")


def _check_function_call(node: OpNode, body: IR) -> None:
    """Check that a call matches the inputs and outputs of its function."""
    taken = {tensor.name: (tensor.shape, tensor.dtype) for tensor in body.graph_inputs}
    given = {name: (tensor.shape, tensor.dtype) for name, tensor in zip(node.args, node.inputs, strict=True)}
    if given != taken:
        wrong = next(name for name in {**taken, **given} if taken.get(name) != given.get(name))
        message = f"{node!r:.200} does not match input {wrong!r:.80} of its function"
        raise GraphError(message, f"$.inputs[{node.args.index(wrong)}]" if wrong in given else "$.inputs", rule="R7")
    if [(t.shape, t.dtype) for t in node.outputs] != [(t.shape, t.dtype) for t in body.graph_outputs]:
        raise GraphError(f"{node!r:.200} does not match the outputs of its function", "$.outputs", rule="R7")
