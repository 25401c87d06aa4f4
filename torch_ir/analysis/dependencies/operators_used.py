"""Operators used by a graph: how often, where first, and with which dtypes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch_ir.ir import IR, OpNode
from torch_ir.ir.regroup.functions import further_entries, op_counts


@dataclass(frozen=True)
class OperatorUse:
    """An operator of a graph; `count` is its number of occurrences with every call inlined."""

    op_type: str
    count: int
    node: str  # the first node that uses it
    module: str  # the module of that node
    dtypes: tuple[str, ...]  # of its outputs


def operator_uses(ir: IR) -> list[OperatorUse]:
    """Return the operators of a graph and of its other entry points, most frequent first."""
    graphs = (ir, *further_entries(ir).values())
    counts = sum((op_counts(graph, with_branches=True) for graph in graphs), Counter[str]())
    nodes: dict[str, OpNode] = {}
    dtypes: dict[str, dict[str, None]] = {}
    for node in ir.all_nodes():
        nodes.setdefault(node.op_type, node)
        dtypes.setdefault(node.op_type, {}).update(dict.fromkeys(tensor.dtype for tensor in node.outputs))
    return [
        OperatorUse(op_type, count, nodes[op_type].name, nodes[op_type].origin.module, tuple(dtypes[op_type]))
        for op_type, count in counts.most_common()
    ]
