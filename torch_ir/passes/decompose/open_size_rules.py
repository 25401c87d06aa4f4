"""Decompose an operator with symbolic sizes: decompose it at several concrete sizes and generalise the results.

Fails if the decompositions differ in structure or a size cannot be expressed by the symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch_ir.analysis.shapes.decompositions import decomposed
from torch_ir.analysis.shapes.open_sizes import Points, expressed, products
from torch_ir.errors import ConversionError, TorchIRError
from torch_ir.ir import IR, Expr, OpNode, TensorMeta, evaluate
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.json.json_fields import Dim
from torch_ir.ops.calling import mapped
from torch_ir.ops.decompose import recorded
from torch_ir.ops.own_decompositions import OWN_DECOMPOSITIONS, SizedRule


def has_open_sizes(node: OpNode) -> bool:
    """Whether a tensor size or an attribute is symbolic."""
    shapes = (dim for tensor in (*node.inputs, *node.outputs) for dim in tensor.shape)
    return any(isinstance(dim, str) for dim in shapes) or any(
        isinstance(value, Expr) for value in values_in(node.attrs)
    )


def decomposed_at_all_sizes(
    node: OpNode,
    device: str,
    sizes: Callable[[], tuple[Points, Points]],
    rule: Callable[..., Any] | None = None,
    *,
    prims: bool = False,
) -> IR | str:
    """Return a function body that computes the node, by a rule or as torch does, or the reason why there is none.

    `sizes` returns points and edges for `decomposed_openly`; it is called for symbolic sizes.
    """
    if not has_open_sizes(node):
        return decomposed(node, device, prims=prims) if rule is None else recorded(node, rule, device)
    rule = OWN_DECOMPOSITIONS.get(node.op_type) if rule is None else rule
    if rule is None:
        return decomposed_openly(node, device, *sizes())
    opened, likely = (rule.opened, rule.sizes(node)) if isinstance(rule, SizedRule) else (rule, ())
    return decomposed_openly(node, device, *sizes(), lambda known, device: recorded(known, opened, device), likely)


def decomposed_openly(
    node: OpNode,
    device: str,
    points: Points,
    edges: Points,
    at_one_size: Callable[[OpNode, str], IR | str] = decomposed,
    sizes: Iterable[Dim] = (),
) -> IR | str:
    """Return a function body that computes the node at all sizes, or the reason why there is none.

    `at_one_size` decomposes a copy of the node with concrete sizes; `sizes` are expressions that steps may have as
    sizes, in addition to those of the node. The body is also compared with those at the `edges`
    of the ranges if an attribute of the node depends on sizes, as in `pad(x, (0, max(0, 2 - n)))`.
    """
    if len(points) < 2:
        return "its sizes vary, and fewer than two valid choices of them are known"
    bodies = []
    for point in points:
        body = at_one_size(_at(node, point), device)
        if isinstance(body, str):
            return body
        bodies.append(body)
    if len({_structure(body) for body in bodies}) > 1:
        return "its sizes vary, and torch decomposes it differently at different sizes"
    if any(isinstance(value, Expr) for value in values_in(node.attrs)):
        for point in edges:
            other = _at_edge(node, point, device, at_one_size)
            if other is not None and _structure(other) == _structure(bodies[0]):
                points, bodies = (*points, point), [*bodies, other]
    try:
        return _Merge(node, points, sizes).of(bodies)
    except ConversionError as error:
        return str(error)


def _at_edge(
    node: OpNode, sizes: Mapping[str, int], device: str, at_one_size: Callable[[OpNode, str], IR | str]
) -> IR | None:
    """Return the decomposition at these sizes; None if the operator is not valid there."""
    try:
        body = at_one_size(_at(node, sizes), device)
    except (TorchIRError, ZeroDivisionError, OverflowError, ValueError):
        return None
    return None if isinstance(body, str) else body


def _at(node: OpNode, sizes: Mapping[str, int]) -> OpNode:
    """Return a copy of a node, with its own tensors, at these sizes."""
    copies: dict[TensorMeta, TensorMeta] = {}

    def copied(tensor: TensorMeta) -> TensorMeta:
        if tensor not in copies:
            shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
            stride = None if tensor.stride is None else [int(evaluate(step, sizes)) for step in tensor.stride]
            copies[tensor] = TensorMeta(tensor.name, shape, tensor.dtype, stride=stride)
        return copies[tensor]

    def known(value: Any) -> Any:
        return evaluate(value, sizes) if isinstance(value, Expr) else value

    made = node.copy(copied)
    made.attrs = {name: mapped(value, known) for name, value in made.attrs.items()}
    return made


def _structure(body: IR) -> Hashable:
    """Return the structure of a graph without its sizes and numbers."""
    places = {tensor: at for at, tensor in enumerate(body.tensors())}
    nodes = [
        (n.op_type, n.args, tuple(places[t] for t in n.inputs), tuple(n.attrs), len(n.outputs)) for n in body.nodes
    ]
    return tuple(nodes), tuple(places[tensor] for tensor in body.graph_outputs)


class _Merge:
    """Merge graphs that differ in numbers alone into one with symbolic sizes."""

    def __init__(self, node: OpNode, points: Points, sizes: Iterable[Dim] = ()) -> None:
        self.op_type = node.op_type
        self.points = points
        self.known = list(dict.fromkeys([*sizes, *_likely_sizes(node)]))

    def of(self, bodies: Sequence[IR]) -> IR:
        merged = bodies[0].clone()
        for tensor, *seen in zip(merged.tensors(), *(body.tensors() for body in bodies), strict=True):
            tensor.shape = self._sizes([one.shape for one in seen])
            tensor.stride = self._strides([one.stride for one in seen], tensor.shape)
        for node, *made in zip(merged.nodes, *(body.nodes for body in bodies), strict=True):
            node.attrs = {name: self._value([one.attrs[name] for one in made]) for name in node.attrs}
        return merged

    def _sizes(self, rows: Sequence[Sequence[Any]]) -> tuple[Dim, ...]:
        return tuple(self._size(column) for column in zip(*rows, strict=True))

    def _strides(self, rows: Sequence[Any], shape: Sequence[Dim]) -> tuple[Dim, ...] | None:
        if None not in rows:
            return tuple(self._size(column, products(shape)) for column in zip(*rows, strict=True))
        if any(row is not None for row in rows):
            raise ConversionError("its sizes vary, and the strides of its decomposition differ in kind between sizes")
        return None

    def _value(self, values: Sequence[Any]) -> Any:
        if all(isinstance(value, (list, tuple)) for value in values) and len({len(value) for value in values}) == 1:
            return [self._value(items) for items in zip(*values, strict=True)]
        if len({repr(value) for value in values}) == 1:
            return values[0]
        if all(type(value) is int for value in values):
            size = self._size(values, is_sure=True)
            return Expr(size) if isinstance(size, str) else size
        raise ConversionError("its sizes vary, and its decomposition has constants that depend on them")

    def _size(self, values: Sequence[Any], likely: Sequence[Dim] = (), *, is_sure: bool = False) -> Dim:
        found = expressed(values, [*likely, *self.known], self.points, is_sure=is_sure)
        if found is None:
            raise ConversionError(f"its sizes vary, and {', '.join(map(str, values))} have no expression")
        return found


def _likely_sizes(node: OpNode) -> Iterator[Dim]:
    """Yield sizes and strides that steps of a decomposition are likely to have."""
    yield from (str(value) for value in values_in(node.attrs) if isinstance(value, Expr))
    for tensor in (*node.inputs, *node.outputs):
        yield from tensor.shape
    for tensor in (*node.inputs, *node.outputs):
        yield from products(tensor.shape)
        yield from tensor.stride or ()
