"""Prologue: put nodes that run once, when weights are bound, before the nodes of every run."""

from __future__ import annotations

from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR
from torch_ir.passes.pass_registry import named_pass
from torch_ir.rewrite.change_log import current_journal


@named_pass("hoist-prologue", may_raise=["peak"])
def hoist_prologue(ir: IR) -> int:
    """Move nodes that depend on weights alone to the front; both parts keep their order.

    before   a = relu(x);  w1 = mul(w, s);  b = linear(a, w1)
    after    w1 = mul(w, s);  a = relu(x);  b = linear(a, w1)
    """
    once, every = split_prologue(ir)
    order = [*once, *every]
    if order == ir.nodes:
        return 0
    fixed, front = set(once), 0
    while ir.nodes[front] in fixed:
        front += 1
    for node in once[front:]:
        current_journal().changed("hoist-prologue", node.name, node.origins)
    ir.nodes = order
    return len(once) - front
