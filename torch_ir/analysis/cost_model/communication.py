"""Bytes that one rank sends, by collective and number of ranks, assuming ring algorithms.

all_gather       n - 1 pieces of the size of a rank's input
reduce_scatter   n - 1 pieces of the size of a rank's output
broadcast        the whole tensor, passed on by all ranks but the last
all_to_all       n - 1 of n pieces of a rank's input
all_reduce       a reduce_scatter and an all_gather of pieces of 1/n of the tensor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import product
from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.json.json_fields import Dim


def communication(node: OpNode, mesh: Mapping[str, int]) -> Dim:
    """Return the bytes that one rank of a mesh sends for a node; 0 unless it is a collective."""
    formula = _FORMULAS.get(base_name(node.op_type))
    axis = node.attrs.get("group_name")
    if formula is None or not isinstance(axis, str) or not node.inputs or not node.outputs:
        return 0
    return formula(node, mesh.get(axis, 1))


def _pieces(count: int, node: OpNode, ranks: int) -> Dim:
    """Return the bytes of some of the pieces of 1/n of a rank's input."""
    whole = bytes_of(node.inputs[0])
    piece = -(-whole // ranks) if isinstance(whole, int) else f"({whole} + {ranks - 1}) // {ranks}"
    return product(count, piece)


_FORMULAS: dict[str, Callable[[OpNode, int], Dim]] = {
    "_c10d_functional.all_reduce": lambda node, ranks: _pieces(2 * (ranks - 1), node, ranks),
    "_c10d_functional.broadcast": lambda node, ranks: _pieces(ranks - 1, node, ranks),
    "_c10d_functional.all_to_all_single": lambda node, ranks: _pieces(ranks - 1, node, ranks),
    "_c10d_functional.all_gather_into_tensor": lambda node, ranks: product(ranks - 1, bytes_of(node.inputs[0])),
    "_c10d_functional.reduce_scatter_tensor": lambda node, ranks: product(ranks - 1, bytes_of(node.outputs[0])),
}
