"""Give the values of an ONNX graph the names of a graph's tensors."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir

from torch_ir.ir import IR
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.targets.onnx.call_nodes import shape_of


def name_values(ir: IR, graph: onnx_ir.Graph) -> None:
    """Name inputs, weights and outputs as in the graph, each once; rename other values that conflict."""
    _separate_outputs(graph)
    changed = [f"{target.key or target.name}.new" for target, _ in ir.mutations]
    inputs = [*(tensor.name for tensor in ir.graph_inputs), *(tensor.key or tensor.name for tensor in ir.params)]
    wanted = [
        *zip(graph.inputs, inputs, strict=True),
        *zip(graph.outputs, [*(tensor.name for tensor in ir.graph_outputs), *changed], strict=True),
    ]
    taken: set[str] = Names()
    names = {value: fresh(name, taken) for value, name in wanted}
    for value in _inner_values(graph):
        if value not in names and value.name in taken:
            names[value] = fresh(value.name, taken)
    for value, name in names.items():
        value.name = name
        value.metadata_props.clear()
    given = graph.inputs[: len(ir.graph_inputs)]
    for tensor, value in zip([*ir.graph_inputs, *ir.returns.inputs], [*given, *graph.outputs], strict=True):
        value.shape = shape_of(tensor)


def _separate_outputs(graph: onnx_ir.Graph) -> None:
    """Insert Identity nodes so that no output is an input, a weight or another output: a value has one name."""
    seen = set(graph.inputs)
    for index, value in enumerate(graph.outputs):
        if value in seen:
            copy = onnx_ir.node("Identity", [value])
            graph.append(copy)
            copy.outputs[0].type = value.type
            graph.outputs[index] = copy.outputs[0]
        seen.add(graph.outputs[index])


def _inner_values(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    """Yield results of nodes, constants and inputs of control flow bodies, whose names must be unique in ONNX too."""
    for scope in (graph, *graph.subgraphs()):
        yield from scope.initializers.values()
    for body in graph.subgraphs():
        yield from body.inputs
    for node in graph.all_nodes():
        yield from node.outputs
