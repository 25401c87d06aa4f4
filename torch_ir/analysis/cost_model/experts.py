"""Grouped products: rows of one matrix times the weight of the expert that each row belongs to.

Every expert's weight is read once if it has any row. A rank of expert parallelism holds some of the experts, and so
multiplies only the rows that belong to them.
"""

from __future__ import annotations

from typing import NamedTuple

from torch_ir.analysis.cost_model.routing import Routing, routing_behind
from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.json.json_fields import Dim

# The argument with the weights of all experts, by operator.
_WEIGHTS = {
    "aten._grouped_mm": "mat2",
    "aten._scaled_grouped_mm": "mat2",
    "transformers.grouped_mm_fallback": "weight",
}


class Grouped(NamedTuple):
    macs: Dim
    bytes_read: Dim
    bytes_written: Dim


def is_grouped(node: OpNode) -> bool:
    """Whether a node multiplies rows with the weights of experts, which its offsets choose."""
    weights = _WEIGHTS.get(base_name(node.op_type))
    if weights not in node.args or "offs" not in node.args or not node.outputs:
        return False
    return len(node[weights].shape) == 3 and len(node.inputs[0].shape) == 2


def grouped_work(node: OpNode, case: str) -> Grouped:
    """Return the multiply-adds and bytes of a grouped product; with open sizes, every expert gets rows."""
    weights, rows, result = node[_WEIGHTS[base_name(node.op_type)]], node.inputs[0], node.outputs[0]
    others = [tensor for tensor in dict.fromkeys(node.inputs) if tensor not in (weights, rows)]
    read, written = total(map(bytes_of, others)), bytes_of(result)
    macs = product(*result.shape, rows.shape[1])
    routing = _routing(node, weights, rows)
    if routing is None:
        return Grouped(macs, total([read, bytes_of(weights), bytes_of(rows)]), written)
    experts = int(weights.shape[0])
    share = min(1.0, routing.rows(experts, case) / int(rows.shape[0]))
    used = routing.used(experts, case) / experts
    moved = total([read, _part(bytes_of(weights), used), _part(bytes_of(rows), share)])
    return Grouped(_part(macs, share), moved, _part(written, share))


def _routing(node: OpNode, weights: TensorMeta, rows: TensorMeta) -> Routing | None:
    """Return the router of the rows; where none is found, each row is a token with one choice."""
    sizes = (weights.shape[0], rows.shape[0])
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    experts, count = map(int, sizes)
    found = routing_behind(node["offs"])
    is_of_rows = found and found.tokens * found.choices >= count and found.experts >= experts
    return found if is_of_rows else Routing(count, 1, experts)


def _part(amount: Dim, share: float) -> Dim:
    return amount if isinstance(amount, str) or share == 1 else round(amount * share)
