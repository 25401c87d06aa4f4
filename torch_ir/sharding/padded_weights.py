"""Weights of a vocabulary that the ranks do not divide, such as 50257 on 8: their pieces are padded.

Only tables of embeddings, and linear layers whose result is a result of the graph: there, padding meets no other
operator. Elsewhere, such as between heads, sizes must be divisible.
"""

from __future__ import annotations

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.placements import Padded, Placement, Shard

_EMBEDDING, _LINEAR = "aten.embedding.default", "aten.linear.default"
_NEAR = 8  # nodes between a head and the result


def padded(weight: TensorMeta, place: Placement, ranks: int) -> Placement:
    """Return the placement of a weight, padded if its rows cannot be divided and its readers allow that."""
    size = weight.shape[0] if weight.shape else 0
    if place != Shard(0) or not isinstance(size, int) or size % ranks == 0 or not weight.consumers:
        return place
    return Padded(size) if all(_allows(node, weight) for node in weight.consumers) else place


def _allows(node: OpNode, weight: TensorMeta) -> bool:
    names = [name for name, tensor in zip(node.args, node.inputs, strict=True) if tensor is weight]
    if node.op_type == _EMBEDDING:
        return names == ["weight"]
    return node.op_type == _LINEAR and "input" not in names and _is_result(node.outputs[0], _NEAR)


def _is_result(tensor: TensorMeta, near: int) -> bool:
    """Whether a tensor is read by nothing but results of the graph, possibly cast, viewed or sliced."""
    return near > 0 and all(
        node.op_type == "return" or (len(node.inputs) == 1 and all(_is_result(each, near - 1) for each in node.outputs))
        for node in tensor.consumers
    )
