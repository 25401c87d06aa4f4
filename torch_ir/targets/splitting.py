"""Decompose a node without a handler with torch, into a graph of finer nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial

from torch_ir.analysis.shapes.open_sizes import Points, edges_of, points_of
from torch_ir.analysis.values.node_memo import once_per_form
from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.passes.decompose.open_size_rules import decomposed_at_all_sizes


class Splitter:
    """Decomposes nodes of one graph; equal nodes are decomposed once."""

    def __init__(self, ir: IR) -> None:
        self._ir = ir
        self._device = ir.device
        self._names = Names(tensor.name for tensor in ir.tensors())
        self._decomposed = once_per_form(partial(decomposed_at_all_sizes, device=ir.device, sizes=lambda: self._sizes))
        self._open: set[str] = set()  # operators being decomposed, to detect recursion

    @cached_property
    def _sizes(self) -> tuple[Points, Points]:
        return points_of(self._ir), edges_of(self._ir)

    @contextmanager
    def split(self, node: OpNode) -> Iterator[IR]:
        """Yield the graph of finer nodes; raise ConversionError if there is none."""
        body = self._decomposed(node)
        if isinstance(body, str):
            raise ConversionError(body)
        if node.op_type in self._open:
            raise ConversionError("its decomposition contains the operator itself")
        self._open.add(node.op_type)
        try:
            yield self._around(node, body.clone())
        finally:
            self._open.discard(node.op_type)

    def _around(self, node: OpNode, body: IR) -> IR:
        """Return the body between the node's own tensors, with unique names."""
        if len(set(body.graph_outputs) - set(body.graph_inputs)) < len(node.outputs):
            raise ConversionError("its decomposition returns an input unchanged")
        given = {tensor: tensor.copy() for tensor in node.inputs}
        for inner, outer in zip(body.graph_inputs, node.inputs, strict=True):
            inner.replace_all_uses_with(given[outer])
        for step in body.nodes:
            step.name = fresh(f"{node.name}.{step.op_type.split('.')[1]}", self._names)
            step.origin, step.origins = node.origin, node.origins
            for tensor in step.outputs:
                tensor.name = step.name if len(step.outputs) == 1 else f"{step.name}.{tensor.index}"
        for made, wanted in zip(body.graph_outputs, node.outputs, strict=True):
            made.name = wanted.name
        data = [tensor for tensor in given.values() if tensor.param is None]
        params = [tensor for tensor in given.values() if tensor.param is not None]
        return IR(body.nodes, data, body.graph_outputs, params=params, device=self._device)
