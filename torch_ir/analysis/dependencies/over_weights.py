"""The nodes that depend on weights alone, judged by the graph: no torch, so effects of operators are not known."""

from __future__ import annotations

from itertools import takewhile

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import RESTORING


def over_weights(ir: IR) -> list[OpNode]:
    """Return the nodes that read only weights, or what other such nodes compute.

    Buffers that change do not count, nor do nodes that restore quantised weights, which run each time.
    """
    changing = {target for target, _ in ir.mutations}
    ready: set[TensorMeta] = {param for param in ir.params if param not in changing}
    found = []
    for node in ir.nodes:
        runs_once = node.inputs and not node.is_call and not node.op_type.startswith(RESTORING)
        if runs_once and ready.issuperset(node.inputs):
            found.append(node)
            ready.update(node.outputs)
    return found


def hoisted(ir: IR) -> list[OpNode]:
    """Return the prologue that a pass moved to the front: all nodes over weights, if they come first; else nothing."""
    found = over_weights(ir)
    every = set(found)
    first = list(takewhile(every.__contains__, ir.nodes))
    return first if len(first) == len(found) > 1 else []
