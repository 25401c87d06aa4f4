"""Guards in formats that cannot check them: refused, because the file would silently compute something else."""

from __future__ import annotations

from torch_ir.errors import UnsupportedOperatorsError
from torch_ir.ir import IR, Expr, OpNode
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.sizes.symbols import broken_constraint, size_conditions
from torch_ir.ops.guards import FIXED_ATTRIBUTE, GUARDS
from torch_ir.targets.node_summary import describe


def without_guards(ir: IR, form: str) -> IR:
    """Return a graph without guards of attributes, which tensors of a format do not have; raise an error for others."""
    refused = [node for node in ir.all_nodes() if node.op_type in GUARDS and node.op_type != FIXED_ATTRIBUTE]
    if rows := [*map(describe, refused), *filter(None, [broken_constraint(ir)])]:
        fix = f"ir.erase(ir.node({refused[0].name!r}))" if refused else "ir.constraints.clear()"
        head = f"{ir.model_name or 'the graph'} cannot be converted to {form}, which does not check what the capture"
        raise UnsupportedOperatorsError("\n  ".join([f"{head} assumed; if all inputs satisfy it, {fix}:", *rows]), rows)
    copy = ir.clone()
    for graph in copy.all_graphs():
        graph.erase([node for node in graph.nodes if node.op_type in GUARDS])
    return copy


def with_size_assertions(ir: IR) -> IR:
    """Return a graph with assertions instead of constraints on sizes and ranges, for a format that has only these."""
    copy, names = ir.clone(), FreeNames(taken_names(ir))
    for at, text in enumerate(size_conditions(ir)):
        attrs = {"self": Expr(text), "assert_msg": f"the graph holds only where {text}"}
        copy.nodes.insert(at, OpNode(names.free("assert_scalar"), "aten._assert_scalar.default", (), (), attrs))
    copy.constraints = []
    return copy
