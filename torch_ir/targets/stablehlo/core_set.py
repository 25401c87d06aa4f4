"""Decompose a graph to the operators that have a rule."""

from __future__ import annotations

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.passes.decompose.decompose_pass import Decomposing
from torch_ir.targets.stablehlo.rules import RULES
from torch_ir.targets.stablehlo.torch_rules import TORCH_RULES


def in_core_set(ir: IR) -> tuple[IR, dict[str, str]]:
    """Return a copy with only operators that have a rule, and why each other operator was not decomposed.

    Functions are kept.
    """
    copy, reasons = ir.clone(), dict[str, str]()
    for graph in copy.all_graphs():
        _ToCore(graph, reasons).run()
    return copy.check(), reasons


class _ToCore(Decomposing):
    """One run over a graph; rules of this target come before torch's decompositions."""

    def __init__(self, ir: IR, reasons: dict[str, str]) -> None:
        super().__init__(ir, RULES.__contains__)
        self._reasons = reasons

    def _objection(self, old: TensorMeta, new: TensorMeta) -> str:
        """Values have no memory here: strides and aliases do not matter."""
        maker = old.producer
        return "" if maker is None or self.know.names_no_size(maker) else "it determines a size"

    def _update_strides(self, node: OpNode) -> None:
        """Keep the strides of capture, which `as_strided` refers to."""

    def _body(self, node: OpNode) -> IR | str:
        found = super()._body(node)
        if isinstance(found, str):
            self._reasons[node.op_type] = found
        return found

    def _decomposed(self, node: OpNode) -> IR | str:
        rule = TORCH_RULES.get(node.op_type)
        found = self._by_rule(node, rule) if rule is not None else ""
        return super()._decomposed(node) if isinstance(found, str) else found
