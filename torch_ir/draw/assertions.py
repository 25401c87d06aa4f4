"""Nodes that only check: assertions, and what is computed only for them. Drawings omit them by default."""

from __future__ import annotations

from collections.abc import Collection

from torch_ir.ir import IR, OpNode
from torch_ir.ir.regroup.functions import calls_by_function, retell_origins

_ASSERTIONS = (
    "aten._assert", "aten.sym_constrain_range", "aten._functional_assert", "aten._functional_sym_constrain_range",
    "torch_ir.fixed_shape.", "torch_ir.fixed_value.", "torch_ir.fixed_attribute.",
)  # fmt: skip


def checks_in(ir: IR) -> set[OpNode]:
    """Return the nodes that check something and do not affect the results."""
    found: set[OpNode] = set()
    for node in reversed(ir.nodes):
        readers = {reader for tensor in node.outputs for reader in tensor.consumers}
        if readers <= found and (readers or node.op_type.startswith(_ASSERTIONS)):
            found.add(node)
    return found


def without_checks(ir: IR, kept: Collection[str]) -> tuple[IR, int]:
    """Return the graph without the nodes that only check, except those of these names, and how many were removed."""
    if not any(map(checks_in, ir.all_graphs())):
        return ir, 0
    copy = ir.clone()
    return copy, _remove_checks(copy, kept)


def _remove_checks(ir: IR, kept: Collection[str]) -> int:
    """Remove the nodes from a graph and its functions; those of a function count for each of its calls."""
    inside = {}
    for name, calls in calls_by_function(ir).items():
        body = ir.functions[name]
        origins = [origin for node in body.nodes for origin in node.origins]
        inside[name] = _remove_checks(body, kept)
        retell_origins(calls, origins, body)
    for name in ir.functions.keys() - inside.keys():
        _remove_checks(ir.functions[name], kept)
    gone = _unneeded(ir, kept)
    for node in gone:
        node.inputs = ()
    ir.nodes = [node for node in ir.nodes if node not in gone]
    return len(gone) + sum(inside.get(node.attrs["function"], 0) for node in ir.nodes if node.is_call)


def _unneeded(ir: IR, kept: Collection[str]) -> set[OpNode]:
    """Return the nodes that only check, except those of these names and what they read."""
    gone = checks_in(ir)
    needed = {node for node in gone if node.name in kept}
    while needed:
        gone -= needed
        needed = {tensor.producer for node in needed for tensor in node.inputs if tensor.producer in gone}
    return gone
