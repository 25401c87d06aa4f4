"""Replace nodes by rules of a back end: functions of the operator's arguments, written in torch.

def softshrink(self, lambd=0.5):
    return torch.where(self.abs() > lambd, self - self.sign() * lambd, 0)

rewritten(ir, {"aten.softshrink.default": softshrink})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_ir.analysis.shapes.open_sizes import visit_graphs
from torch_ir.errors import ConversionError
from torch_ir.ir import IR, OpNode
from torch_ir.ops.decompose import NO_RULE
from torch_ir.passes.decompose.decompose_pass import Decomposing

Rule = Callable[..., Any]  # NotImplemented leaves a node as it is


def rewritten(ir: IR, rules: Mapping[str, Rule]) -> IR:
    """Return a copy in which each node with a rule is replaced by what the rule computes; the graph itself if none has.

    Rules are not applied to their own results. Bodies of control flow are rewritten too. Raise ConversionError where a
    rule applies and cannot be written for all sizes: the back end would compute the operator wrongly.
    """
    if not any(node.op_type in rules for node in ir.all_nodes()):
        return ir
    copy = ir.clone()
    visit_graphs(copy, lambda graph: _Rewriting(graph, rules).run())
    return copy.check()


class _Rewriting(Decomposing):
    """One run over a graph; each distinct form of node is traced once."""

    def __init__(self, ir: IR, rules: Mapping[str, Rule]) -> None:
        super().__init__(ir, lambda op_type: op_type not in rules)
        self.rules = rules

    def _leave(self, node: OpNode, why: str) -> None:
        if why != NO_RULE:
            raise ConversionError(f"{node!r} cannot be rewritten for this back end; specialize the graph: {why}")

    def _parts(self, node: OpNode, inside: Sequence[str]) -> list[OpNode]:
        return [node] if inside else super()._parts(node, inside)

    def _decomposed(self, node: OpNode) -> IR | str:
        return self._by_rule(node, self.rules[node.op_type])
