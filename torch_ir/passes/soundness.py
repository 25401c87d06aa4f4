"""Checks after every pass: the graph is valid and its signature unchanged."""

from __future__ import annotations

from collections.abc import Hashable

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.open_sizes import inside
from torch_ir.errors import GraphError, ShapeError
from torch_ir.ir import IR, OpNode, TensorMeta

_LARGE = 1000  # nodes and weights


class Watchdog:
    """Checks a graph after every pass; nodes that did not change are not checked again."""

    def __init__(self, ir: IR) -> None:
        self.ir = ir
        self._signature = signature(ir)
        self._results = [TensorMeta("", tensor.shape, tensor.dtype) for tensor in ir.graph_outputs]
        self._shapes = Shapes(ir)
        self._seen: dict[OpNode, tuple[object, ...]] = {node: _parts(node) for node in ir.nodes}
        self._bodies = {name: Watchdog(body) for name, body in ir.functions.items()}

    def check(self, name: str) -> None:
        """Raise GraphError if the pass of that name broke the graph; record changed strides in the graph.

        Of a large graph only the changed part is checked; `optimize` checks the whole at the end.
        """
        try:
            self._update_shapes()
            if len(self.ir.nodes) + len(self.ir.params) <= _LARGE or not _is_in_order(self.ir):
                self.ir.check()
            if (found := signature(self.ir)) != self._signature:
                raise GraphError(f"the signature changed from {self._signature} to {found}")
            if not all(map(self._shapes.agree, self._results, self.ir.graph_outputs)):
                raise GraphError(f"the outputs changed from {self._results} to {self.ir.graph_outputs}")
        except GraphError as error:
            raise GraphError(f"pass {name!r} broke the graph: {error}") from error

    def _update_shapes(self) -> None:
        """Infer shapes again where something changed; shapes and dtypes must match the graph, strides may change."""
        moved: set[TensorMeta] = set()
        for node in self.ir.nodes:
            if self._is_new(node) or (moved and not moved.isdisjoint(node.inputs)):
                moved.update(self._update(node))
        with inside(self.ir):
            for name, body in self.ir.functions.items():
                watched = self._bodies.get(name)
                if watched is None or watched.ir is not body:
                    watched = self._bodies[name] = Watchdog(body)
                    watched._seen = {}
                watched._update_shapes()

    def _is_new(self, node: OpNode) -> bool:
        """Whether a node is new or was changed since the last check."""
        seen = self._seen.get(node)
        return seen is None or seen[0] is not node.inputs or seen[1:] != _parts(node)[1:]

    def _update(self, node: OpNode) -> list[TensorMeta]:
        """Infer a node's outputs and record their strides; return the outputs whose strides changed."""
        self._seen[node] = _parts(node)
        try:
            made = self._shapes.of(node)
        except ShapeError as error:
            raise GraphError(f"{node!r}: {error}") from None
        if made is None:
            return []
        if len(made) != len(node.outputs) or not all(map(self._shapes.agree, node.outputs, made)):
            raise GraphError(f"{node!r} returns {made}, but the graph records {list(node.outputs)}")
        moved = [old for old, new in zip(node.outputs, made, strict=True) if old.stride != new.stride]
        for old, new in zip(node.outputs, made, strict=True):
            old.stride = new.stride
        return moved


def _parts(node: OpNode) -> tuple[object, ...]:
    """Return what the outputs of a node depend on; attributes are copied, as a pass may edit them in place."""
    attrs = {name: [*value] if isinstance(value, list) else value for name, value in node.attrs.items()}
    return node.inputs, attrs, node.op_type


def _is_in_order(ir: IR) -> bool:
    """Whether every node reads only earlier tensors: a quick check that does not locate the error."""
    made = {*ir.graph_inputs, *ir.params}
    for node in ir.nodes:
        if not made.issuperset(node.inputs):
            return False
        made.update(node._outputs)
    return made.issuperset(ir.returns.inputs)


def signature(ir: IR) -> Hashable:
    """Return what callers rely on: inputs, the number and nesting of outputs, mutated tensors and symbolic sizes."""
    return (
        tuple((tensor.name, tensor.shape, tensor.dtype) for tensor in ir.graph_inputs),
        len(ir.graph_outputs),
        tuple(target.name for target, _ in ir.mutations),
        tuple(sorted(ir.symbols)),
        repr(ir.input_tree),
        repr(ir.output_tree),
    )
