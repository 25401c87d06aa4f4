"""Judge a graph: everything that must hold, and the place where it does not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch_ir.errors import ExpressionError, GraphError, did_you_mean
from torch_ir.ir.encode import MAX_FUNCTION_DEPTH
from torch_ir.ir.encoding import PLAIN
from torch_ir.ir.expressions import KEYWORDS, names_in
from torch_ir.ir.node import OpNode
from torch_ir.ir.structure import Branch, Slot, Tree, leaves
from torch_ir.ir.tensor import PARAM_KINDS, TensorMeta
from torch_ir.ir.values import (
    DTYPES,
    LAYOUTS,
    MEMORY_FORMATS,
    Device,
    Dtype,
    Expr,
    FunctionRef,
    Layout,
    MemoryFormat,
    is_device,
)

if TYPE_CHECKING:
    from torch_ir.ir.graph import IR

_PLACEMENT = re.compile(r"replicate|shard\((\d{1,3})\)|partial\((?:sum|avg|min|max|product)\)")
_NAME = re.compile(r"[^\x00-\x1f\x7f\"'`<>\\]{1,1000}")
_LINE = re.compile(r"[^\x00-\x1f\x7f]{1,1000}")
_SYMBOL = re.compile(r"[A-Za-z_]\w{0,99}")
_INT64 = 1 << 63
_CLOSED: dict[type, Callable[[str], bool]] = {
    Dtype: DTYPES.__contains__,
    Device: is_device,
    Layout: LAYOUTS.__contains__,
    MemoryFormat: MEMORY_FORMATS.__contains__,
}


def check(
    ir: IR, outer_symbols: frozenset[str] = frozenset(), outer_mesh: Mapping[str, int] | None = None, depth: int = 0
) -> None:
    """Raise GraphError, naming the place, unless the graph and all its functions hold together."""
    if depth > MAX_FUNCTION_DEPTH:
        raise GraphError(f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels")
    symbols = outer_symbols | ir.symbols.keys()
    mesh = ir.mesh or outer_mesh or {}
    _check_header(ir)
    _check_placements(_check_definitions(ir, symbols), mesh)
    _check_symbols(ir, symbols)
    for name, body in ir.functions.items():
        if not _is_name(name):
            raise GraphError(f"{name!r:.80} cannot be the name of a function")
        try:
            # a body sees the sizes around it, but only functions of its own, so nothing recurses
            check(body, symbols, mesh, depth + 1)
        except GraphError as error:
            raise GraphError(f"function {name!r}: {error}") from None
    _check_calls(ir, symbols)
    _check_params(ir)
    _check_returns(ir)
    _check_tree(ir.input_tree, len(ir.graph_inputs), symbols, "input_tree")
    _check_tree(ir.output_tree, len(ir.graph_outputs), symbols, "output_tree")
    _check_pair(ir.input_tree)


def _check_header(ir: IR) -> None:
    for text in (ir.model_name, ir.pytorch_version):
        if not isinstance(text, str) or not text.isprintable():
            raise GraphError(f"{text!r:.80} cannot be the name of a model or a version: it cannot be printed")


def _is_name(name: Any) -> bool:
    if type(name) is str and name.isidentifier():
        return len(name) <= 1000
    return _is_like(name, _NAME)


def _is_like(name: Any, grammar: re.Pattern[str]) -> bool:
    return isinstance(name, str) and grammar.fullmatch(name) is not None


def _check_symbols(ir: IR, known: frozenset[str]) -> None:
    for name, symbol in ir.symbols.items():
        if not _is_like(name, _SYMBOL) or name in KEYWORDS or name != symbol.name:
            raise GraphError(f"{name!r:.80} cannot be the name of a symbol")
        low, high = (-_INT64 if symbol.min is None else symbol.min), (_INT64 - 1 if symbol.max is None else symbol.max)
        if not -_INT64 <= low <= high < _INT64:
            raise GraphError(f"symbol {name!r} can have no value: {symbol.range}")
        if symbol.tensor is None:
            raise GraphError(f"symbol {name!r} is bound to nothing")
        if symbol.dim is not None:
            if not 0 <= symbol.dim < len(symbol.tensor.shape):
                raise GraphError(f"symbol {name!r} is bound to dimension {symbol.dim} of {symbol.tensor!r}")
            if name not in names_in(symbol.tensor.shape[symbol.dim]):
                raise GraphError(f"symbol {name!r} is not in dimension {symbol.dim} of {symbol.tensor!r}")
    for text in ir.constraints:
        _check_expression(text, known, "constraint")


def _check_definitions(ir: IR, symbols: frozenset[str]) -> Collection[TensorMeta]:
    """Every name is defined once, before its use, and every link is two-sided; gives all tensors."""
    tensors: dict[str, TensorMeta] = {}
    nodes: set[str] = set()
    shapes: dict[int, Any] = {}  # those that are in order, since many tensors share one
    for tensor in [*ir.graph_inputs, *ir.params]:
        _check_tensor(tensor, symbols)
        if tensor.producer_node not in (None, tensor.name) or tensor.index != 0:
            raise GraphError(f"{tensor!r} is given to the graph, but {tensor.producer_node!r} claims to make it")
        _define(tensor, tensors)
    for node in ir.nodes:
        name = node.name
        if not _is_name(name):
            raise GraphError(f"{name!r:.80} cannot be the name of a node")
        if name in nodes:
            raise GraphError(f"two nodes are called {name!r}")
        nodes.add(name)
        for tensor in node._inputs:
            if tensors.get(tensor.name) is not tensor or node not in tensor._uses:
                _check_reads(node, tensors)
        for index, tensor in enumerate(node._outputs):
            is_seen = id(tensor.shape) in shapes and tensor.stride is None
            if not is_seen or tensor.name != name or tensor.dtype not in DTYPES:
                _check_tensor(tensor, symbols)
                shapes[id(tensor.shape)] = tensor.shape
            if tensor.producer is not node or tensor.index != index:
                raise GraphError(f"{tensor!r} does not know that it is output {index} of {node!r}")
            _define(tensor, tensors)
    _check_reads(ir.returns, tensors)
    for symbol in ir.symbols.values():
        if symbol.tensor is not None and tensors.get(symbol.tensor.name) is not symbol.tensor:
            raise GraphError(f"symbol {symbol.name!r} is bound to {symbol.tensor!r}, which is not part of the graph")
    return tensors.values()


def _define(tensor: TensorMeta, tensors: dict[str, TensorMeta]) -> None:
    if tensor.name in tensors:
        raise GraphError(f"two tensors are called {tensor.name!r}")
    tensors[tensor.name] = tensor


def _check_reads(node: OpNode, made: dict[str, TensorMeta]) -> None:
    for tensor in node.inputs:
        if made.get(tensor.name) is not tensor:
            if tensor.name in made:
                raise GraphError(f"{node!r} reads a {tensor.name!r} that is not the one of this graph")
            hint = did_you_mean(tensor.name[:100], made)
            raise GraphError(f"{node!r} reads {tensor.name!r:.80}, which nothing before it makes{hint}")
        if node not in tensor._uses:
            raise GraphError(f"{tensor!r} does not know that {node!r} reads it")


def _check_tensor(tensor: TensorMeta, symbols: frozenset[str]) -> None:
    if not _is_name(tensor.name):
        raise GraphError(f"{tensor.name!r:.80} cannot be the name of a tensor")
    if tensor.dtype not in DTYPES:
        raise GraphError(f"{tensor!r} has an unknown dtype{did_you_mean(str(tensor.dtype), DTYPES)}")
    if tensor.stride is not None and len(tensor.stride) != len(tensor.shape):
        raise GraphError(f"{tensor!r} has {len(tensor.stride)} strides")
    for dim in tensor.shape if tensor.stride is None else (*tensor.shape, *tensor.stride):
        if isinstance(dim, str):
            _check_expression(dim, symbols, repr(tensor))
        elif type(dim) is not int or not 0 <= dim < _INT64:
            raise GraphError(f"{tensor!r} has a dimension of {dim!r}")


def _check_placements(tensors: Iterable[TensorMeta], mesh: Mapping[str, int]) -> None:
    """In a sharded graph, a tensor says for each axis of the mesh how it lies there."""
    for axis, size in mesh.items():
        if not _is_like(axis, _SYMBOL) or type(size) is not int or not 1 <= size < _INT64:
            raise GraphError(f"the mesh cannot have an axis {axis!r:.80} of size {size!r:.80}")
    for tensor in tensors:
        if tensor.placement is None:
            continue
        if len(tensor.placement) != len(mesh):
            raise GraphError(f"{tensor!r} has {len(tensor.placement)} placements on a mesh of {len(mesh)} axes")
        for placement in tensor.placement:
            found = _PLACEMENT.fullmatch(placement)
            if not found or (found[1] is not None and int(found[1]) >= len(tensor.shape)):
                raise GraphError(f"{tensor!r} cannot be placed as {placement!r:.80}")


def _check_expression(text: str, symbols: frozenset[str], place: str) -> None:
    try:
        unknown = names_in(text) - symbols
    except ExpressionError as error:
        raise GraphError(f"{place}: {error}") from None
    if unknown:
        name = min(unknown)
        hint = did_you_mean(name, symbols)
        raise GraphError(f"{place}: {str(text)!r:.80} speaks of an unknown symbol {name!r}{hint}")


def _check_calls(ir: IR, symbols: frozenset[str]) -> None:
    """Operators and arguments; most nodes are like one before them, and their names need no second look."""
    seen: set[tuple[Any, ...]] = set()
    for node in ir.nodes:
        args, attrs = node._args, node.attrs
        if args and len(args) != len(node._inputs):
            raise GraphError(f"{node!r} has {len(node._inputs)} inputs, but {len(args)} argument names")
        if (alike := (node.op_type, args or len(node._inputs), *attrs)) not in seen:
            _check_names(node)
            seen.add(alike)
        for value in attrs.values():
            if type(value) not in PLAIN:
                _check_value(node, value, symbols, ir.functions)
        if "function" in attrs and node.is_call:
            _check_function_call(node, ir.functions[attrs["function"]])


def _check_function_call(node: OpNode, body: IR) -> None:
    """A call gives a function what it takes, and gets what it gives."""
    taken = {tensor.name: (tensor.shape, tensor.dtype) for tensor in body.graph_inputs}
    given = {name: (tensor.shape, tensor.dtype) for name, tensor in zip(node.args, node.inputs, strict=True)}
    if given != taken:
        wrong = next(name for name in {**taken, **given} if taken.get(name) != given.get(name))
        raise GraphError(f"{node!r} does not give its function the argument {wrong!r} that it takes")
    if [(t.shape, t.dtype) for t in node.outputs] != [(t.shape, t.dtype) for t in body.graph_outputs]:
        raise GraphError(f"{node!r} does not have the outputs that its function gives")


def _check_names(node: OpNode) -> None:
    if not _is_like(node.op_type, _LINE) or node.op_type == "return":
        raise GraphError(f"{node!r:.200} has an operator name that cannot be")
    names = [*node.args, *node.attrs]
    for name in names:
        if not _is_like(name, _LINE):
            raise GraphError(f"{node!r} has an argument whose name cannot be: {name!r:.80}")
    if len(set(names)) != len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise GraphError(f"{node!r} has the argument {twice!r} twice")
    elements: dict[str, set[str]] = {}
    for name in names:
        while "." in name:
            name, _, index = name.rpartition(".")
            elements.setdefault(name, set()).add(index)
    for name, found in elements.items():  # numbered from 0 without a gap: `tensors.0`, `tensors.1`
        if name in names or found != set(map(str, range(len(found)))):
            listed = ", ".join(sorted(found)[:10])
            raise GraphError(f"{node!r} has elements {listed} of {name!r}, which is no list from 0 on")


def _check_value(node: OpNode, value: Any, symbols: frozenset[str], functions: Mapping[str, Any]) -> None:
    kind = type(value)
    if kind is list and PLAIN.issuperset(map(type, value)):
        return
    for leaf in (value,) if kind in _CLOSED else _leaf_values(value):
        kind = type(leaf)
        if kind is Expr:
            _check_expression(leaf, symbols, repr(node))
        elif kind is FunctionRef:
            if leaf not in functions:
                hint = did_you_mean(leaf[:100], functions)
                raise GraphError(f"{node!r} calls {str(leaf)!r}, which is not a function{hint}")
        elif kind in _CLOSED:
            if not _CLOSED[kind](leaf):
                raise GraphError(f"{node!r} has an attribute {leaf!r:.80}, which is unknown")
        elif kind not in PLAIN and kind is not complex:
            raise GraphError(f"{node!r} has an attribute {leaf!r:.80}, which no attribute can be")


def _leaf_values(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaf_values(item)
    elif isinstance(value, dict):
        yield from _leaf_values(list(value.values()))
    else:
        yield value


def _check_params(ir: IR) -> None:
    owners: dict[str, TensorMeta] = {}
    for tensor in ir.params:
        param = tensor.param
        if param is None or not param.keys or param.kind not in PARAM_KINDS:
            raise GraphError(f"weight {tensor!r} has no key or an unknown kind")
        for key in param.keys:
            if not _is_like(key, _LINE):
                raise GraphError(f"{key!r:.80} cannot be the key of a weight")
            if key in owners:
                raise GraphError(f"{tensor!r} and {owners[key]!r} both hold the weight {key!r}")
            owners[key] = tensor
        if param.data is not None and (param.data.shape, param.data.dtype) != (tensor.shape, tensor.dtype):
            raise GraphError(f"{tensor!r} holds values of {param.data.dtype}{list(param.data.shape)}")


def _check_returns(ir: IR) -> None:
    given = {*ir.graph_inputs, *ir.params}
    changed: set[TensorMeta] = set()
    for target, value in ir.mutations:
        if target not in given:
            raise GraphError(f"the graph changes {target!r}, which is neither an input nor a weight")
        if target in changed:
            raise GraphError(f"the graph changes {target!r} twice")
        changed.add(target)
        if (target.shape, target.dtype) != (value.shape, value.dtype):
            raise GraphError(f"{target!r} cannot become {value!r}: shape and dtype must stay")
    if not ir.returns.inputs and not any(True for _ in leaves(ir.output_tree)):
        raise GraphError("the graph returns nothing and changes nothing")


def _check_tree(tree: Tree, count: int, symbols: frozenset[str], place: str) -> None:
    """Every tensor has exactly one place in the structure."""
    slots = []
    for path, leaf in leaves(tree):
        if isinstance(leaf, Slot):
            slots.append(int(leaf))
        elif isinstance(leaf, Expr):
            _check_expression(leaf, symbols, f"{place}{path}")
    if sorted(slots) != list(range(count)):
        raise GraphError(f"{place} has slots {slots[:20]} for {count} tensors")


def _check_pair(tree: Tree) -> None:
    """The inputs are a tuple of arguments and a dict of keywords."""
    pair = tree.items if isinstance(tree, Branch) else ()
    if [item.kind if isinstance(item, Branch) else "" for item in pair] != ["tuple", "dict"]:
        raise GraphError("input_tree is not a pair of arguments and keywords")
