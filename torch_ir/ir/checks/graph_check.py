"""Check the invariants of a graph; errors carry the JSON path of the violation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.checks.call_check import check_calls, too_long
from torch_ir.ir.checks.check_context import CheckContext
from torch_ir.ir.checks.json_paths import given_path, returned_path
from torch_ir.ir.checks.limits import UNLIMITED, Limits, allow_more
from torch_ir.ir.checks.mesh_check import check_mesh
from torch_ir.ir.checks.origin_check import check_origins
from torch_ir.ir.checks.signature_check import check_signature
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.name_grammar import bad_name, is_name, is_symbol
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.json.encode import MAX_FUNCTION_DEPTH
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ir.sizes.expressions import KEYWORDS, names_in
from torch_ir.ir.sizes.symbols import Symbol

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_INT64 = 1 << 63
_READS, _USES = attrgetter("inputs"), attrgetter("_uses")


class _Around(NamedTuple):
    """The graph that contains this one as a function, if any."""

    graph: IR | None
    mesh: Mapping[str, int]
    depth: int


def check(ir: IR, limits: Limits = UNLIMITED) -> None:
    """Raise GraphError, naming rule and place, unless the graph and all its functions are valid."""
    _check(ir, CheckContext(limits), _Around(None, {}, 0))


def _check(ir: IR, outer: CheckContext, around: _Around) -> None:
    if around.depth > MAX_FUNCTION_DEPTH:
        raise GraphError(f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels", "$", rule="R2")
    context = outer.inside(ir.symbols)
    mesh = ir.mesh or around.mesh
    _check_header(ir)
    check_mesh(ir, _check_definitions(ir, context, around.graph), mesh, around.graph)
    _check_symbols(ir, context)
    check_signature(ir, context, around.graph)  # before functions, which may share weights
    for name, body in ir.functions.items():
        path = f"$.functions.{name!s:.200}"
        if not is_name(name, context.limits.name_length):
            message = f"invalid function name {name!r:.80}"
            raise bad_name(name, message, path, context.limits.name_length)
        try:
            # a body sees the enclosing symbols, but only its own functions, so there is no recursion
            _check(body, context, _Around(ir, mesh, around.depth + 1))
        except GraphError as error:
            error.prefix(path, f"function {name!r}: ")
            raise
    check_calls(ir, context)
    check_origins(ir, context.limits.name_length)


def _check_header(ir: IR) -> None:
    for key, text in (("model_name", ir.model_name), ("pytorch_version", ir.pytorch_version)):
        if not isinstance(text, str) or not text.isprintable():
            message = f"{key} {text!r:.80} is not printable"
            raise GraphError(message, f"$.{key}", rule="R6")


# -- tensors ----------------------------------------------------------------------------------------------------------


def _check_definitions(ir: IR, context: CheckContext, outer: IR | None) -> Collection[TensorMeta]:
    """Check that every name is defined once, before its use, and that links are consistent; return all tensors."""
    tensors: dict[str, TensorMeta] = {}
    try:
        for tensor in [*ir.graph_inputs, *ir.params]:
            _check_tensor(tensor, context, "$")
            if tensor.producer is not None or tensor.producer_node not in (None, tensor.name) or tensor.index != 0:
                message = f"{tensor!r:.200} is an input or weight, but has the producer {tensor.producer_node!r:.80}"
                raise GraphError(message, "$.producer_node", rule="R7")
            if tensor.name in tensors:
                raise _defined_twice(tensor, "$.name")
            tensors[tensor.name] = tensor
    except GraphError as error:
        error.path = given_path(ir, len(tensors), error.path, outer)
        raise
    _check_nodes(ir.nodes, tensors, context)
    _check_reads(ir.returns, tensors, lambda index: returned_path(ir, index))
    _check_readers(ir, tensors.values())
    for symbol in ir.symbols.values():
        if symbol.tensor is not None and tensors.get(symbol.tensor.name) is not symbol.tensor:
            message = f"symbol {symbol.name!r} is bound to {symbol.tensor!r:.200}, which is not part of the graph"
            raise GraphError(message, f"$.symbols.{symbol.name!s:.200}.tensor", rule="R8")
    return tensors.values()


def _check_nodes(nodes: Iterable[OpNode], tensors: dict[str, TensorMeta], context: CheckContext) -> None:
    names: set[str] = set()
    layouts: dict[tuple[int, int], Any] = {}  # shapes and strides already checked; many tensors share them
    longest, most = context.limits.name_length, context.limits.list_length
    number = index = -1
    try:
        for number, node in enumerate(nodes):  # noqa: B007  # used in the error handler
            name = node.name
            if not is_name(name, longest):
                raise bad_name(name, f"invalid node name {name!r:.80}", "$.name", longest)
            if name in names:
                raise GraphError(f"two nodes are called {name!r}", "$.name", rule="R8")
            names.add(name)
            for tensor in node.inputs:
                if tensors.get(tensor.name) is not tensor or node not in tensor._uses:
                    _check_reads(node, tensors, "$.inputs[{}]".format)
            for index, tensor in enumerate(node._outputs):
                layout = (id(tensor.shape), id(tensor.stride))
                if layout not in layouts or tensor.name != name or tensor.dtype not in DTYPES:
                    _check_tensor(tensor, context, f"$.outputs[{index}]")
                    layouts[layout] = tensor.shape, tensor.stride
                if tensor.producer is not node or tensor.index != index:
                    message = f"{tensor!r:.200} is not linked as output {index} of {node!r:.200}"
                    raise GraphError(message, f"$.outputs[{index}]", rule="R7")
                if tensor.name in tensors:
                    raise _defined_twice(tensor, f"$.outputs[{index}].name")
                tensors[tensor.name] = tensor
            if index >= most:
                raise too_long(node, "outputs", len(node._outputs), most)
    except GraphError as error:
        error.prefix(f"$.nodes[{number}]", node=f"{node.name!s:.1000}")
        raise


def _defined_twice(tensor: TensorMeta, path: str) -> GraphError:
    return GraphError(f"two tensors are called {tensor.name!r:.80}", path, rule="R8")


def _check_reads(node: OpNode, made: dict[str, TensorMeta], path: Callable[[int], str]) -> None:
    for index, tensor in enumerate(node.inputs):
        if made.get(tensor.name) is not tensor:
            if tensor.name in made:
                message = f"{node!r:.200} reads another tensor {tensor.name!r:.80} than the one of this graph"
                raise GraphError(message, path(index), rule="R8")
            message = f"{node!r:.200} reads {tensor.name!r:.80}, which nothing before it makes"
            raise GraphError(message, path(index), rule="R8", hint=suggestion(tensor.name, made))
        if node not in tensor._uses:
            raise GraphError(f"{tensor!r:.200} does not list {node!r:.200} as a consumer", path(index), rule="R7")


def _check_readers(ir: IR, tensors: Collection[TensorMeta]) -> None:
    """Check that every consumer of a tensor is in the graph and reads it that often.

    Every read is known to be counted as a use, so equal totals suffice; details are computed only if they differ.
    """
    nodes = [*ir.nodes, ir.returns]
    if sum(map(len, map(_READS, nodes))) == sum(map(sum, map(dict.values, map(_USES, tensors)))):
        return
    inside = set(nodes)
    for tensor in tensors:
        for node, count in tensor._uses.items():
            message = f"{tensor!r:.200} lists {node!r:.200} as a consumer"
            if node not in inside:
                hint = "remove nodes with ir.erase, or set node.inputs = ()"
                raise GraphError(f"{message}, which is not in the graph", rule="R7", node=node.name, hint=hint)
            if node.inputs.count(tensor) != count:
                hint = "assign node.inputs, which updates the uses"
                message = f"{message} {count} times, but is read {node.inputs.count(tensor)} times"
                raise GraphError(message, rule="R7", node=node.name, hint=hint)


def _check_tensor(tensor: TensorMeta, context: CheckContext, path: str) -> None:
    if not is_name(tensor.name, context.limits.name_length):
        message = f"invalid tensor name {tensor.name!r:.80}"
        raise bad_name(tensor.name, message, f"{path}.name", context.limits.name_length)
    if tensor.dtype not in DTYPES:
        hint = suggestion(str(tensor.dtype), DTYPES)
        raise GraphError(f"{tensor!r:.200} has an unknown dtype", f"{path}.dtype", rule="R5", hint=hint)
    if len(tensor.shape) > context.limits.rank:
        message = f"{tensor.name!r:.80} has {len(tensor.shape)} dimensions, more than {context.limits.rank}"
        raise GraphError(message, f"{path}.shape", rule="R2", hint=allow_more("rank"))
    elements = _check_dims(tensor.shape, tensor, context, f"{path}.shape")
    if tensor.stride is not None:
        if len(tensor.stride) != len(tensor.shape):
            raise GraphError(f"{tensor!r:.200} has {len(tensor.stride)} strides", f"{path}.stride", rule="R7")
        _check_dims(tensor.stride, tensor, context, f"{path}.stride")
        elements = max(elements, _span(tensor.shape, tensor.stride))
    if elements > context.limits.elements:
        message = f"{tensor!r:.200} has more than {context.limits.elements} elements"
        raise GraphError(message, f"{path}.shape", rule="R2", hint=allow_more("elements"))


def _check_dims(dims: tuple[Dim, ...], tensor: TensorMeta, context: CheckContext, path: str) -> int:
    """Check that each dim is a number >= 0 or an expression; return the product of the numbers, counting 0 as 1."""
    product = 1
    for index, dim in enumerate(dims):
        if type(dim) is int and 0 <= dim < _INT64:
            product *= dim or 1
        elif isinstance(dim, str):
            context.check_expression(dim, f"{tensor!r:.200}", f"{path}[{index}]")
        else:
            raise GraphError(f"{tensor!r:.200} has a dimension of {dim!r:.80}", f"{path}[{index}]", rule="R4")
    return product


def _span(shape: tuple[Dim, ...], stride: tuple[Dim, ...]) -> int:
    """Return the distance from the first element to the last, counting static dimensions only."""
    pairs = zip(shape, stride, strict=True)
    return 1 + sum((size - 1) * step for size, step in pairs if isinstance(size, int) and isinstance(step, int))


# -- symbols ----------------------------------------------------------------------------------------------------------


def _check_symbols(ir: IR, context: CheckContext) -> None:
    for name, symbol in ir.symbols.items():
        if not is_symbol(name) or name in KEYWORDS or name != symbol.name:
            message = f"invalid symbol name {name!r:.80}"
            raise GraphError(message, f"$.symbols.{name!s:.200}", rule="R6")
        try:
            _check_symbol(symbol)
        except GraphError as error:
            error.prefix(f"$.symbols.{name}", f"symbol {name!r} ")
            raise
    for index, text in enumerate(ir.constraints):
        context.check_expression(text, "constraint", f"$.constraints[{index}]")


def _check_symbol(symbol: Symbol) -> None:
    tensor, dim = symbol.tensor, symbol.dim
    low, high = (-_INT64 if symbol.min is None else symbol.min), (_INT64 - 1 if symbol.max is None else symbol.max)
    if type(low) is not int or type(high) is not int or not -_INT64 <= low <= high < _INT64:
        raise GraphError(f"has an empty range: {symbol.range:.200}", "$", rule="R8")
    if tensor is None:
        raise GraphError("is not bound to a tensor", "$", rule="R8")
    if dim is None:
        return
    if type(dim) is not int or not 0 <= dim < len(tensor.shape):
        raise GraphError(f"is bound to dimension {dim!r:.40} of {tensor!r:.200}", "$.dim", rule="R8")
    if symbol.name not in names_in(tensor.shape[dim]):
        raise GraphError(f"is not in dimension {dim} of {tensor!r:.200}", "$.dim", rule="R7")
