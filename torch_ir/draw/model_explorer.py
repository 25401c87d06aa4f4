"""Graphs as JSON for Google's Model Explorer: nodes in nested modules, functions as further graphs.

{"label": "MLP", "graphs": [{"id": "MLP", "nodes": [{"id": "fc1", "label": "linear", "namespace": "fc1", ...}]}]}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch_ir.draw.named_placeholders import named_placeholders
from torch_ir.draw.node_texts import OPAQUE, short_name
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import lengthened
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.origins import call_around, modules_around
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ir.text.printer import print_value, shape_text

Record = dict[str, Any]
_RED = {"backgroundColor": "#f9c9c5", "borderColor": "#c62828", "hoveredBorderColor": "#8e1414"}
_GREEN = {"backgroundColor": "#dff3e1", "borderColor": "#3f9150"}
_BLUE = {"backgroundColor": "#dcebfb", "borderColor": "#3574b8"}


def to_model_explorer(
    ir: IR,
    placeholders: Collection[str] = (),
    heat: Mapping[str, float] | None = None,
    unit: str = "heat",
    include_weights: bool = True,
) -> Record:
    """Return a graph and its functions as a graph collection; placeholders are red, `heat` becomes node attributes."""
    require_graph(ir, "to_model_explorer")
    name = ir.model_name or "graph"
    writer = _Writer(named_placeholders(placeholders, ir), heat or {}, unit, include_weights)
    return {"label": name, "graphs": list(writer.graphs(ir, name))}


class _Writer:
    """Writes graphs; heat applies to the outermost one."""

    def __init__(
        self, placeholders: Collection[str], heat: Mapping[str, float], unit: str, include_weights: bool
    ) -> None:
        self._placeholders = placeholders
        self._heat = heat
        self._unit = unit
        self._include_weights = include_weights

    def graphs(self, ir: IR, name: str) -> Iterator[Record]:
        yield {"id": name, "nodes": list(self._nodes(ir, name))}
        for function, body in ir.functions.items():
            yield from self.graphs(body, f"{name}.{function}")

    def _nodes(self, ir: IR, graph: str) -> Iterator[Record]:
        ids = _Ids(ir)
        for tensor in ir.graph_inputs:
            yield {**_given(ids[tensor], tensor.name, "inputs", tensor), "style": _GREEN}
        for tensor in ir.params if self._include_weights else ():
            if tensor.consumers:
                yield _given(ids[tensor], tensor.key or tensor.name, _namespace_of_weight(tensor), tensor)
        for node in ir.nodes:
            yield self._node(node, ids, graph)
        for index, tensor in enumerate(ir.graph_outputs):
            record = {"id": ids.output(index), "label": f"output {index}", "namespace": "outputs", "style": _BLUE}
            yield record | {"incomingEdges": list(self._edges([tensor], ids))}

    def _node(self, node: OpNode, ids: _Ids, graph: str) -> Record:
        record: Record = {"id": ids[node], "label": short_name(node), "namespace": namespace(node)}
        if called := called_by([node]):
            record["subgraphIds"] = [f"{graph}.{function}" for function in called]
        record["attrs"] = [{"key": key, "value": value} for key, value in self._attrs(node) if value]
        record["incomingEdges"] = list(self._edges(node.inputs, ids))
        record["inputsMetadata"] = [
            _metadata(index, name=tensor.name, argument=argument)
            for index, (argument, tensor) in enumerate(zip(node.args, node.inputs, strict=True))
        ]
        record["outputsMetadata"] = [
            _metadata(index, name=tensor.name, tensor_shape=_typed(tensor)) for index, tensor in enumerate(node.outputs)
        ]
        if node.name in self._placeholders or node.op_type.startswith(OPAQUE):
            record["style"] = _RED
        return record

    def _attrs(self, node: OpNode) -> Iterator[tuple[str, str]]:
        yield "op_type", node.op_type
        yield "module", node.origin.module
        yield "class", node.origin.module_class
        yield "source", node.origin.source
        if node.name in self._heat:
            yield self._unit, f"{self._heat[node.name]:g}"
        yield from ((name, print_value(value)) for name, value in node.attrs.items())

    def _edges(self, tensors: Iterable[TensorMeta], ids: _Ids) -> Iterator[Record]:
        for index, tensor in enumerate(tensors):
            if tensor.param is None or self._include_weights:
                source = ids[tensor.producer or tensor]
                yield {
                    "sourceNodeId": source,
                    "sourceNodeOutputId": str(tensor.index if tensor.producer else 0),
                    "targetNodeInputId": str(index),
                }


class _Ids:
    """Unique ids: a node has its name, inputs, weights and outputs get others."""

    def __init__(self, ir: IR) -> None:
        self._taken = {node.name for node in ir.nodes}
        self._of: dict[OpNode | TensorMeta, str] = {node: node.name for node in ir.nodes}
        for kind, tensors in (("input", ir.graph_inputs), ("weight", ir.params)):
            self._of |= {tensor: lengthened(f"{kind} {tensor.name}", self._taken) for tensor in tensors}
        self._outputs = [lengthened(f"output {index}", self._taken) for index in range(len(ir.graph_outputs))]

    def __getitem__(self, item: OpNode | TensorMeta) -> str:
        return self._of[item]

    def output(self, index: int) -> str:
        return self._outputs[index]


def namespace(node: OpNode) -> str:
    """Return the enclosing modules, outermost first: `layers/0/attn`; later calls are marked: `block (call 2)`."""
    parts = []
    for path in modules_around(node.origin.module)[1:]:
        call = call_around(node.origin, path).call
        parts.append(_part(path) + (f" (call {call + 1})" if call else ""))
    return "/".join(parts)


def _namespace_of_weight(tensor: TensorMeta) -> str:
    """Return the namespace of the module that owns a weight."""
    owner = (tensor.key or "").rpartition(".")[0]
    return "/".join(map(_part, modules_around(owner)[1:]))


def _part(path: str) -> str:
    return path.rpartition(".")[2].replace("/", "_")


def _given(id: str, label: str, namespace: str, tensor: TensorMeta) -> Record:
    metadata = [_metadata(0, name=tensor.name, tensor_shape=_typed(tensor))]
    return {"id": id, "label": label, "namespace": namespace, "outputsMetadata": metadata}


def _metadata(index: int, **facts: str) -> Record:
    names = {"name": "__tensor_tag"}  # the key under which the viewer looks for a tensor's name
    return {"id": str(index), "attrs": [{"key": names.get(key, key), "value": value} for key, value in facts.items()]}


def _typed(tensor: TensorMeta) -> str:
    return f"{tensor.dtype} {shape_text(tensor)}"
