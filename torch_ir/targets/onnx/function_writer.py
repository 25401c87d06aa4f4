"""The functions of a graph as ONNX functions of the domain `torch_ir`."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir

from torch_ir.errors import UnsupportedOperatorsError
from torch_ir.ir import IR
from torch_ir.targets.onnx.call_nodes import DOMAIN, OP_TYPE, graph_with_calls
from torch_ir.targets.onnx.value_names import name_values


class FunctionWriter:
    """Converts bodies; `unsupported` are the operators of all of them that cannot be converted."""

    def __init__(self, opset: int) -> None:
        self.unsupported: list[str] = []
        self._opset = opset

    def __call__(self, body: IR, name: str, op_type: str, called: Mapping[str, onnx_ir.Function]) -> onnx_ir.Function:
        """Convert a body; one with unsupported operators is empty, so that those of all bodies are found."""
        try:
            graph = graph_with_calls(body, self._opset, called).graph
            name_values(body, graph)
            _make_constants(graph)
        except UnsupportedOperatorsError as error:
            self.unsupported += error.missing
            graph = onnx_ir.Graph([], [], nodes=[])
        function = onnx_ir.Function(DOMAIN, name, graph=graph, attributes=())
        function.metadata_props[OP_TYPE] = op_type
        return function


def _make_constants(graph: onnx_ir.Graph) -> None:
    """Replace initialisers by Constant nodes, because functions have no initialisers."""
    for value in [*graph.initializers.values()][::-1]:
        assert value.const_value is not None  # a folded constant; weights are inputs
        node = onnx_ir.node("Constant", [], {"value": value.const_value})
        (made,) = node.outputs
        made.name, made.type, made.shape = value.name, value.type, value.shape
        onnx_ir.convenience.replace_all_uses_with(value, made)
        del graph.initializers[str(value.name)]
        graph.insert_before(graph[0], node)
