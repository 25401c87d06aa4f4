"""Replace nodes by rules of a back end: functions of the operator's arguments, written in torch.

def softshrink(self, lambd=0.5):
    return torch.where(self.abs() > lambd, self - self.sign() * lambd, 0)

rewritten(ir, {"aten.softshrink.default": softshrink})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_ir.ir import IR, OpNode
from torch_ir.ops.decompose import recorded
from torch_ir.passes.decompose.decompose_pass import Decomposing
from torch_ir.passes.decompose.open_size_rules import decomposed_openly, has_open_sizes

Rule = Callable[..., Any]  # NotImplemented leaves a node as it is


def rewritten(ir: IR, rules: Mapping[str, Rule]) -> IR:
    """Return a copy in which each node with a rule is replaced by what the rule computes; the graph itself if none has.

    Rules are not applied to their own results. Bodies of control flow are rewritten too.
    """
    if not any(node.op_type in rules for node in ir.all_nodes()):
        return ir
    copy = ir.clone()
    for graph in copy.all_graphs():
        _Rewriting(graph, rules).run()
    return copy.check()


class _Rewriting(Decomposing):
    """One run over a graph; each distinct form of node is traced once."""

    def __init__(self, ir: IR, rules: Mapping[str, Rule]) -> None:
        super().__init__(ir, lambda op_type: op_type not in rules)
        self.rules = rules

    def _parts(self, node: OpNode, inside: Sequence[str]) -> list[OpNode]:
        return [node] if inside else super()._parts(node, inside)

    def _decomposed(self, node: OpNode) -> IR | str:
        rule = self.rules[node.op_type]

        def at_one_size(known: OpNode, device: str) -> IR | str:
            return recorded(known, rule, device)

        if has_open_sizes(node):
            return decomposed_openly(node, self.ir.device, self.know.shapes.points, at_one_size)
        return recorded(node, rule, self.ir.device)
