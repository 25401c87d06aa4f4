"""Reduction of gradients: pending sums of backward, and products whose result is needed in shards.

A pending sum stays pending while it is only added to others or viewed, so that the inputs of queries, keys and values
share one collective. It is reduced before anything else reads it, once for all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.placements import REPLICATE, Partial, Placement, Shard

_KEPT = (
    "add", "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "_to_copy", "detach", "alias", "clone",
)  # fmt: skip
_KEEPING = frozenset(f"aten.{name}" for name in _KEPT)
_TURNS = ("aten.t.default", "aten.transpose.int", "aten.permute.default")  # of a matrix; checked by shape


def place_of_sum(
    tensor: TensorMeta, place: Placement, seen: Callable[[TensorMeta, OpNode], Placement | None]
) -> Placement | None:
    """Return where a result of backward is to be reduced; None if it stays as it is.

    `seen` returns the placement of another operand of a reader.
    """
    if not isinstance(place, Partial) or place.reduction != "sum" or not tensor.consumers:
        return None
    if len(tensor.consumers) == 1 and base_name(tensor.consumers[0].op_type) in _KEEPING:
        return None
    if any(node.op_type == "return" for node in tensor.consumers):
        return None  # the caller decides
    beside = (
        seen(other, reader)
        for reader in tensor.consumers
        for other in reader.inputs
        if other is not tensor and other.shape == tensor.shape
    )
    return next((other for other in beside if isinstance(other, Shard)), REPLICATE)


def wanted_products(gradients: Mapping[TensorMeta, Placement]) -> dict[TensorMeta, int]:
    """Return the matrix products that compute sharded gradients, with the dimension that is needed in shards."""
    found = {}
    for gradient, place in gradients.items():
        tensor, dim = gradient, place.dim if isinstance(place, Shard) and place == Shard(place.dim) else -1
        while dim >= 0 and tensor.producer is not None and tensor.producer.op_type in _TURNS and len(tensor.shape) == 2:
            source = tensor.producer.inputs[0]
            if tensor.shape != source.shape[::-1] or len(source.consumers) != 1:
                break
            tensor, dim = source, 1 - dim
        if dim >= 0 and tensor.producer is not None and tensor.producer.op_type == "aten.mm.default":
            found[tensor] = dim
    return found
