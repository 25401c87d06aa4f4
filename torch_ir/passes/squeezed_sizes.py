"""Symbolic sizes that `squeeze` would drop if they are 1: an optimised graph rejects that case.

The shapes recorded after such a node assume that the dimension stays, and passes rely on them. For sizes that callers
choose, a constraint is added to the graph; for data-dependent sizes, an assertion before the node.
"""

from __future__ import annotations

from torch_ir.analysis.shapes.open_sizes import decided_by_data, inside
from torch_ir.ir import IR, Expr, OpNode
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ir.sizes.specialize import squeezed_sizes

_ASSERT = "aten._assert_scalar.default"


def keep_squeezed_sizes(ir: IR, caller: IR) -> None:
    """Require every symbolic size that a node would drop at 1 to differ from 1, in a graph and its functions."""
    nodes: list[OpNode] = []
    names = FreeNames(taken_names(ir))
    for node in ir.nodes:
        for dim in dict.fromkeys(squeezed_sizes(node)):
            if isinstance(dim, str) and not _is_never_one(dim, ir, caller):
                condition = f"{dim if dim.isidentifier() else f'({dim})'} != 1"
                if names_in(dim).isdisjoint(decided_by_data(ir)):
                    owner = ir if names_in(dim) <= ir.symbols.keys() else caller
                    owner.constraints = list(dict.fromkeys([*owner.constraints, condition]))
                else:
                    nodes.append(_assertion(names.free("assert_scalar"), node, condition))
        nodes.append(node)
    if len(nodes) > len(ir.nodes):
        ir.nodes = nodes
    for body in ir.functions.values():
        with inside(ir):
            keep_squeezed_sizes(body, ir)


def _is_never_one(dim: str, ir: IR, caller: IR) -> bool:
    symbol = ir.symbols.get(dim) or caller.symbols.get(dim)
    return symbol is not None and (symbol.min or 0) > 1


def _assertion(name: str, node: OpNode, condition: str) -> OpNode:
    attrs = {"self": Expr(condition), "assert_msg": f"{node.name!r} keeps all dimensions, so {condition}"}
    return OpNode(name, _ASSERT, (), (), attrs, origin=node.origin)
