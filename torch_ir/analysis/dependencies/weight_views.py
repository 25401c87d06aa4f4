"""Views of weights, computed by the part of a training step that reads them, not kept from forward for backward.

    before   t = aten.t(w)     ...   backward: mm(grad, aten.t(t))
    after    t = aten.t(w)     ...   backward: t_1 = aten.t(w); mm(grad, aten.t(t_1))

Then forward hands over activations only: a weight that is gathered for a layer can be freed after it.
"""

from __future__ import annotations

from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.training_parts import part_of_path


def views_where_read(ir: IR) -> None:
    """Copy views of weights that another part of the step reads into that part, before the first reader."""
    views: dict[TensorMeta, OpNode] = {}
    params = set(ir.params)
    for node in ir.nodes:
        is_of_weight = len(node.inputs) == 1 and (node.inputs[0] in params or node.inputs[0] in views)
        if is_of_weight and len(node.outputs) == 1 and not node.is_call and is_view(node):
            views[node.output] = node
    if not any(_is_read_elsewhere(node) for node in views.values()):
        return
    nodes = Names(node.name for node in ir.nodes)
    tensors = Names(tensor.name for tensor in ir.tensors())
    copies: dict[tuple[TensorMeta, str], TensorMeta] = {}
    line: list[OpNode] = []

    def in_part(tensor: TensorMeta, reader: OpNode, part: str) -> TensorMeta:
        view = views.get(tensor)
        if view is None or part_of_path(view.origin.module) == part:
            return tensor
        if (tensor, part) not in copies:
            source = in_part(view.inputs[0], reader, part)
            copies[tensor, part] = tensor.copy(fresh(tensor.name, tensors))
            copy = view.copy(lambda each: source if each is view.inputs[0] else copies[tensor, part], "")
            copy.name, copy.origin = fresh(view.name, nodes), reader.origin
            copy.origins = (copy.name,)
            line.append(copy)
        return copies[tensor, part]

    for node in ir.nodes:
        if not views.keys().isdisjoint(node.inputs):
            part = part_of_path(node.origin.module)
            node.inputs = tuple(in_part(tensor, node, part) for tensor in node.inputs)
        line.append(node)
    ir.nodes = line


def _is_read_elsewhere(view: OpNode) -> bool:
    part = part_of_path(view.origin.module)
    return any(part_of_path(reader.origin.module) != part for reader in view.output.consumers)
