"""The functions of a graph as ONNX functions of the domain `torch_ir`, each converted once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import onnx_ir

from torch_ir.ir import IR
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.regroup.shared_functions import structure
from torch_ir.targets.onnx.call_nodes import DOMAIN, OP_TYPE, graph_with_calls
from torch_ir.targets.onnx.value_names import name_values
from torch_ir.targets.standalone_functions import calls_of


class Functions:
    """The functions of one model; equal bodies, also in different functions, are one."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._names: set[str] = set()
        self._made: dict[Hashable, onnx_ir.Function] = {}

    def __iter__(self) -> Iterator[onnx_ir.Function]:
        return iter(self._made.values())

    def called_by(self, ir: IR) -> dict[str, onnx_ir.Function]:
        """Return the functions that a graph calls, by their names in it."""
        op_types = {str(call.attrs["function"]): call.op_type for call in calls_of(ir)}
        return {name: self._of(ir.functions[name], name, op_type) for name, op_type in op_types.items()}

    def _of(self, body: IR, name: str, op_type: str) -> onnx_ir.Function:
        kind = (op_type, structure(body))
        if kind not in self._made:
            graph = graph_with_calls(body, self._opset, self.called_by(body)).graph
            name_values(body, graph)
            _make_constants(graph)
            function = onnx_ir.Function(DOMAIN, fresh(name, self._names), graph=graph, attributes=())
            function.metadata_props[OP_TYPE] = op_type
            self._made[kind] = function
        return self._made[kind]


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
