"""Operators used by a graph: how often, where first, and with which dtypes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch_ir.ir import IR, OpNode
from torch_ir.ir.regroup.functions import called_by, further_entries


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
    counts = sum(map(_counts, further_entries(ir).values()), _counts(ir))
    nodes: dict[str, OpNode] = {}
    dtypes: dict[str, dict[str, None]] = {}
    for node in ir.all_nodes():
        nodes.setdefault(node.op_type, node)
        dtypes.setdefault(node.op_type, {}).update(dict.fromkeys(tensor.dtype for tensor in node.outputs))
    return [
        OperatorUse(op_type, count, nodes[op_type].name, nodes[op_type].origin.module, tuple(dtypes[op_type]))
        for op_type, count in counts.most_common()
    ]


def _counts(ir: IR) -> Counter[str]:
    """Count the occurrences of each operator; the bodies of control flow count once."""
    inside = {name: _counts(body) for name, body in ir.functions.items()}
    counts: Counter[str] = Counter()
    for node in ir.nodes:
        bodies = [inside[name] for name in called_by([node]) if name in inside]
        for body in bodies:
            counts.update(body)
        if not (node.is_call and bodies):
            counts[node.op_type] += 1
    return counts
