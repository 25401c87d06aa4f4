"""Common subexpression elimination: compute equal nodes once."""

from __future__ import annotations

from collections.abc import Hashable

from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.origins import origin_for
from torch_ir.ops.effects import is_pure, is_uninitialised
from torch_ir.passes.pass_registry import named_pass
from torch_ir.rewrite.change_log import current_journal


@named_pass("common-subexpressions", may_raise=["peak"])
def common_subexpressions(ir: IR) -> int:
    """Merge nodes that compute the same from the same tensors.

    before   a = neg(x);  b = neg(x);  c = add(a, b)
    after    a = neg(x);               c = add(a, a)
    """
    know, entries = Knowledge.of(ir), current_journal()
    first: dict[Hashable, OpNode] = {}
    gone: set[OpNode] = set()
    origins: dict[OpNode, dict[str, None]] = {}  # of nodes that replace others
    for node in ir.nodes:
        if not is_pure(node) or is_uninitialised(node):
            continue
        twin = first.setdefault((node.computation, node.inputs), node)
        if twin is node:
            continue
        pairs = list(zip(node.outputs, twin.outputs, strict=True))
        if why := next(filter(None, (know.objection(old, new) for old, new in pairs)), ""):
            entries.decline("common-subexpressions", node.name, why)
            continue
        for old, new in pairs:
            old.replace_all_uses_with(new)
        entries.merged(ir, [twin, node])
        twin.origin = origin_for([twin, node])
        origins.setdefault(twin, dict.fromkeys(twin.origins)).update(dict.fromkeys(node.origins))
        node.inputs = ()
        gone.add(node)
        entries.changed("common-subexpressions", node.name, node.origins)
    for twin, names in origins.items():
        twin.origins = tuple(names)
    ir.nodes = [node for node in ir.nodes if node not in gone]
    return len(gone)
