"""Replace symbols by numbers or other names: in one expression, or in a whole graph."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union

from torch_ir.errors import ExpressionError, GraphError, did_you_mean
from torch_ir.ir.graph.io_tree import Branch, Tree
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.sizes.expressions import (
    FUNCTIONS,
    MAX_DIGITS,
    SIGNS,
    Call,
    Expr,
    Number,
    Skip,
    evaluate,
    names_in,
    parse,
)

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR
    from torch_ir.ir.graph.node import OpNode

_KINDS = {"+": "sum", "-": "sum", "and": "and", "or": "or"}
_SQUEEZES = ("aten.squeeze.", "aten.squeeze_copy.")
_Size = TypeVar("_Size", int, Dim)
_PRODUCT = re.compile(r"\w+( \* \w+)*")


def substitute(text: Dim, new: Mapping[str, Dim]) -> Any:
    """Replace symbols in an expression and fold what becomes constant: `2 * batch * seq` -> `16 * seq`."""
    if not isinstance(text, str) or names_in(text).isdisjoint(new):
        return text
    program = parse(str(text))
    parts: list[_Part] = []
    open_sides: list[Skip] = []  # every `and` and `or` whose right side is not complete yet
    for at, step in enumerate((*program, None)):
        while open_sides and open_sides[-1].to == at:
            parts[-2:] = [_either(open_sides.pop(), *parts[-2:])]
        if isinstance(step, Skip):
            open_sides.append(step)
        elif isinstance(step, Call):
            first = len(parts) - step.arity
            parts[first:] = [_applied(step, parts[first:])]
        elif step is not None:
            parts.append(new.get(step, step) if isinstance(step, str) else step)
    if isinstance(parts[0], _Undefined):
        raise parts[0].error
    return parts[0] if _is_number(parts[0]) else str(parts[0])


class _Product:
    """Factors in order, with all numbers multiplied into one in front."""

    def __init__(self, text: str) -> None:
        factors = text.split(" * ") if _PRODUCT.fullmatch(text) else [_operand(text)]
        self.number = math.prod(int(factor) for factor in factors if factor.isdigit())
        self.rest = [factor for factor in factors if not factor.isdigit()]

    def __imul__(self, other: _Product) -> _Product:
        self.number *= other.number
        self.rest += other.rest
        return self

    def __str__(self) -> str:
        if self.number >= 10**MAX_DIGITS:
            raise ExpressionError(f"a product has a number of more than {MAX_DIGITS} digits")
        return " * ".join([str(self.number), *self.rest] if self.number != 1 or not self.rest else self.rest)


class _Chain(str):
    """Parts joined by `and`, by `or`, or by `+` and `-`: another such operator after it needs no parentheses."""

    __slots__ = ("kind",)
    kind: str


class _Undefined(str):
    """A part without a value, such as `8 % 0`: an error, unless it is the side of `and` or `or` that may be skipped."""

    __slots__ = ("error",)
    error: ExpressionError


_Part = Union[Number, str, _Product]


def _undefined(text: str, error: ExpressionError) -> _Undefined:
    part = _Undefined(text)
    part.error = error
    return part


def _is_number(part: _Part) -> bool:
    return not isinstance(part, (str, _Product))


def _applied(step: Call, parts: list[_Part]) -> _Part:
    found = _applied_to(step, parts)
    for part in parts:
        if isinstance(part, _Undefined):
            return _undefined(str(found), part.error)
    return found


def _applied_to(step: Call, parts: list[_Part]) -> _Part:
    sign = SIGNS[step.function]
    if sign == "*" and not all(map(_is_number, parts)):
        product, factor = (part if isinstance(part, _Product) else _Product(str(part)) for part in parts)
        product *= factor
        return product
    if sign in FUNCTIONS:
        text = f"{sign}({', '.join(map(str, parts))})"
    elif len(parts) == 2:
        text = _joined(parts[0], sign, parts[1])
    else:
        text = f"{sign} {_operand(parts[0])}"
    try:
        return evaluate(text, {}) if all(map(_is_number, parts)) else text
    except ExpressionError as error:
        return _undefined(text, error)


def _either(step: Skip, left: _Part, right: _Part) -> _Part:
    if _is_number(left):  # `True and x` is x, `False and x` is False
        return left if bool(left) is step.when else right
    chain = _joined(left, "or" if step.when else "and", right)
    return _undefined(chain, left.error) if isinstance(left, _Undefined) else chain


def _joined(left: _Part, sign: str, right: _Part) -> str:
    """Join both sides with an operator, without nesting long sums, as the depth of parentheses is limited."""
    kind = _KINDS.get(sign, "")
    goes_on = isinstance(left, _Chain) and left.kind == kind
    chain = _Chain(f"{left if goes_on else _operand(left)} {sign} {_operand(right)}")
    chain.kind = kind
    return chain if kind else str(chain)


def _operand(part: _Part) -> str:
    text = str(part)
    return text if text.replace(".", "", 1).isalnum() or text.isidentifier() else f"({text})"


def specialize(ir: IR, sizes: Mapping[str, int]) -> IR:
    """Return a copy of a graph with these sizes as numbers; a GraphError if the graph does not hold for them."""
    given = set(ir.graph_inputs)
    for name, size in sizes.items():
        symbol = ir.symbols.get(name)
        if symbol is None:
            raise GraphError(f"the graph has no size {name!r}{did_you_mean(name, ir.symbols)}")
        if symbol.tensor is not None and symbol.tensor not in given:
            raise GraphError(f"{name!r} is decided by the data ({symbol.tensor!r}) and cannot be chosen")
        if isinstance(size, bool) or not isinstance(size, int) or not symbol.admits(size):
            raise GraphError(f"{name} = {size!r:.40} is out of range: {symbol.range}")
    _check_ranges(ir, sizes)
    copy = ir.clone()
    replace_symbols(copy, sizes)
    for node in copy.all_nodes():
        if _drops_more(node):
            message = f"{node!r} would drop a dimension of size 1 that the graph keeps"
            raise GraphError(f"{message}; capture the model at {_listed(sizes)} instead")
    return copy.check()


def _check_ranges(ir: IR, sizes: Mapping[str, int]) -> None:
    """Raise GraphError for sizes that a function of the graph does not allow."""
    for name, body in ir.functions.items():
        inner = _outer_sizes(body, sizes)
        for symbol in body.symbols.values():
            if symbol.name in inner and not symbol.admits(inner[symbol.name]):
                message = f"{symbol.name} = {inner[symbol.name]} is out of range: {symbol.range}"
                raise GraphError(f"function {str(name)!r}: {message}")
        _check_ranges(body, inner)


def squeezed_sizes(node: OpNode) -> list[Dim]:
    """Return the sizes that a squeeze node drops if they are 1; an empty list for other operators."""
    if not node.op_type.startswith(_SQUEEZES):
        return []
    shape = node.inputs[0].shape if node.inputs else ()
    dims = node.attrs.get("dim")
    chosen = range(len(shape)) if dims is None else dims if isinstance(dims, (list, tuple)) else [dims]
    # a graph that was not checked against torch may have invalid dimensions; running it raises an error
    return [shape[dim] for dim in chosen if isinstance(dim, int) and -len(shape) <= dim < len(shape)]


def _drops_more(node: OpNode) -> bool:
    """Whether a node drops more dimensions than its output shape says."""
    sizes = squeezed_sizes(node)
    return bool(sizes and node.outputs) and len(node.inputs[0].shape) - sizes.count(1) < len(node.outputs[0].shape)


def replace_symbols(ir: IR, new: Mapping[str, Dim]) -> None:
    """Replace symbols in every shape, attribute, constraint and function; drop constraints that always hold then.

    A symbol of the same name that a function reads from one of its inputs is the same size. One that it reads from a
    computed tensor is a different size, and stays.
    """
    constraints = {text: substitute(text, new) for text in ir.constraints}
    for text in (text for text, outcome in constraints.items() if outcome is False):
        raise GraphError(f"the graph holds only where {text}, but {_listed(new)}")
    ir.constraints = list(dict.fromkeys(text for text in constraints.values() if text is not True))
    for tensor in ir.tensors():
        tensor.shape = tuple(substitute(dim, new) for dim in tensor.shape)
        if tensor.stride is not None:
            stride = tuple(substitute(step, new) for step in tensor.stride)
            tensor.stride = None if is_row_major(tensor.shape, stride) else stride
    for node in ir.nodes:
        node.attrs = {name: replaced_sizes(value, new) for name, value in node.attrs.items()}
        if _asserts(node, False):
            raise GraphError(f"{node!r} demands {node.attrs.get('assert_msg')!r:.120}, but {_listed(new)}")
    ir.nodes = [node for node in ir.nodes if not _asserts(node, True)]
    ir.input_tree, ir.output_tree = _replaced_leaves(ir.input_tree, new), _replaced_leaves(ir.output_tree, new)
    for body in ir.functions.values():
        replace_symbols(body, _outer_sizes(body, new))
    symbols = list(ir.symbols.values())
    ir.symbols = {}
    for symbol in symbols:
        name = new.get(symbol.name, symbol.name)
        if isinstance(name, str) and name.isidentifier() and name not in ir.symbols:
            symbol.name = name
            ir.symbols[name] = symbol


def is_row_major(shape: Sequence[Dim], stride: Sequence[Dim]) -> bool:
    """Whether strides that are all known are those of elements in row-major order."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if not isinstance(size, int) or not isinstance(step, int):
            return False
        if size != 1 and step != expected and 0 not in shape:
            return False
        expected *= size
    return True


def _outer_sizes(body: IR, new: Mapping[str, _Size]) -> Mapping[str, _Size]:
    """Return the sizes that also hold inside a function: all but symbols that it reads from computed tensors."""
    given = set(body.graph_inputs) if body.symbols else set()
    own = {name for name, symbol in body.symbols.items() if symbol.tensor not in given}
    return new if own.isdisjoint(new) else {name: size for name, size in new.items() if name not in own}


def _asserts(node: OpNode, outcome: bool) -> bool:
    """Whether a node asserts a condition on sizes that is known to have this outcome."""
    return node.op_type == "aten._assert_scalar.default" and node.attrs.get("self") is outcome


def _listed(new: Mapping[str, Dim]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in new.items())


def replaced_sizes(value: Any, new: Mapping[str, Dim]) -> Any:
    """Replace symbols in an attribute."""
    if isinstance(value, Expr):
        found = substitute(value, new)
        return Expr(found) if isinstance(found, str) else found
    if isinstance(value, (list, tuple)):
        return type(value)(replaced_sizes(item, new) for item in value)
    if isinstance(value, dict):
        return {key: replaced_sizes(item, new) for key, item in value.items()}
    return value


def _replaced_leaves(tree: Tree, new: Mapping[str, Dim]) -> Any:
    if not isinstance(tree, Branch):
        return replaced_sizes(tree, new)
    return Branch(tree.kind, tuple(_replaced_leaves(item, new) for item in tree.items), tree.keys, tree.type_name)
