"""Sizes that the ranks do not divide, such as 50257 tokens on 8 ranks, 14 heads on 4, or 6 experts on 4.

All ranks run one graph, so a rank with a shorter piece of a weight has padding behind it, and so has what is computed
from that. Padding is never part of a result: operators treat each element of the dimension alone, a sum over it gets
zeros instead of padding, and for everything else the pieces are gathered and cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.placements import Padded, Partial, Placement, Shard
from torch_ir.sharding.heads import heads_behind, heads_of
from torch_ir.sharding.placement_rules import Local, PlacedNode

_LINEAR, _TRANSPOSE, _MATRIX = "aten.linear", "aten.t.default", 2
_PRODUCTS = {"aten.mm": "mat2", "aten.addmm": "mat2", "aten.matmul": "other"}  # the argument of a weight [in, out]
_GROUPED = ("aten._grouped_mm", "transformers.grouped_mm_fallback")
_SUMS = frozenset((_LINEAR, *_PRODUCTS, *_GROUPED, "aten.bmm", "aten.baddbmm", "aten.sum", "aten.embedding"))


def padded(weight: TensorMeta, place: Placement, ranks: int, functions: Mapping[str, IR]) -> Placement:
    """Return the placement of a weight, in padded pieces if its rows, columns or heads cannot be divided."""
    if not isinstance(place, Shard) or place != Shard(place.dim) or not 0 <= place.dim < len(weight.shape):
        return place
    size = weight.shape[place.dim]
    if not isinstance(size, int) or not weight.consumers:
        return place
    heads = {_heads(*reader) for reader in _readers(weight, place.dim, functions)} - {0}
    count = heads.pop() if len(heads) == 1 else size
    if size % count:
        count = size
    return Padded(place.dim, size=size, unit=size // count) if count % ranks else place


def _readers(weight: TensorMeta, dim: int, functions: Mapping[str, IR]) -> Iterator[tuple[OpNode, str, int]]:
    """Yield the nodes that read a weight, also in functions or transposed, with the argument and dimension there."""
    left = [(weight, dim, functions)]
    seen: set[tuple[TensorMeta, int]] = set()
    while left:
        tensor, at, known = left.pop()
        if (tensor, at) in seen:
            continue
        seen.add((tensor, at))
        for node in tensor.consumers:
            body = known.get(node.attrs["function"]) if node.is_call else None
            names = [name for name, each in zip(node.args, node.inputs, strict=True) if each is tensor]
            if node.op_type == _TRANSPOSE and len(tensor.shape) == _MATRIX:
                left.append((node.output, 1 - at, known))
            elif body is None:
                yield from ((node, name, at) for name in names)
            else:
                left += [(inner, at, body.functions) for inner in body.graph_inputs if inner.name in names]


def _heads(node: OpNode, argument: str, dim: int) -> int:
    """Return the number of heads in a dimension of a weight, by what it is multiplied with or makes; 0 if unknown."""
    base = base_name(node.op_type)
    if base == _LINEAR and argument in ("weight", "bias"):
        return heads_of(node.output) if dim == 0 else heads_behind(node["input"])
    if argument == _PRODUCTS.get(base):
        return heads_of(node.output) if dim == 1 else heads_behind(node.inputs[node.args.index(argument) - 1])
    return heads_of(node.output) if base == "aten.addmm" and argument == "self" else 0


def is_exact(placed: PlacedNode, local: Local) -> bool:
    """Whether a node can run on padded pieces: each element of the dimension alone, or a sum over it."""
    if not any(isinstance(place, Padded) for place in local.inputs.values()):
        return True
    is_sum = base_name(placed.node.op_type) in _SUMS
    return all(
        isinstance(place, Padded) or (is_sum and isinstance(place, Partial) and place.reduction == "sum")
        for place in local.outputs
    )


def has_sum(local: Local) -> bool:
    """Whether a node sums over a dimension that may be padded."""
    return any(isinstance(place, Partial) for place in local.outputs)
