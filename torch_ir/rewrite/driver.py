"""The driver: apply rules until none matches any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from torch_ir.errors import INVALID_ARGUMENTS, GraphError, ShapeError, UnknownOperatorError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.rewrite.builder import Builder, Knowledge
from torch_ir.rewrite.change_log import current_journal
from torch_ir.rewrite.node_order import NodeOrder
from torch_ir.rewrite.pattern import Match, Pattern, find_match
from torch_ir.rewrite.rewrite_rule import Rule

_MOST_PER_NODE = 20  # changes; more means that rules undo each other


def rewrite(ir: IR, rules: Iterable[Rule], context: Knowledge) -> int:
    """Apply rules to a graph, but not its functions, until nothing changes; return the number of changes."""
    return _Rewriting(ir, list(rules), context).run()


class _Rewriting:
    """One run: the nodes still to visit, and the removed ones."""

    def __init__(self, ir: IR, rules: Sequence[Rule], context: Knowledge) -> None:
        for rule in rules:
            rule.check_names()
        self.ir = ir
        self.rules = rules
        self.context = context
        self.journal = current_journal()
        self.by_op: dict[str, list[tuple[Rule, Pattern]]] = {}
        self.gone: set[OpNode] = set()
        self.touched: set[OpNode] = set()
        self.count = 0

    @cached_property
    def names(self) -> FreeNames:
        """Free names of the graph; most runs need none."""
        return FreeNames(taken_names(self.ir))

    def run(self) -> int:
        most = _MOST_PER_NODE * (len(self.ir.nodes) + 5)
        order = NodeOrder(self.ir.nodes)
        self._sweep(self.ir.nodes, order)
        while self.touched:
            touched = [node for node in self.touched if node not in self.gone and self._rules_for(node.op_type)]
            self._sweep(order.sorted(touched) if touched else [], order)
            if self.count > most:
                raise GraphError(f"rules undo each other: {', '.join(rule.name for rule in self.rules)}")
        if self.count:
            self.ir.nodes = [node for node in order.nodes() if node not in self.gone]
        return self.count

    def _sweep(self, nodes: Iterable[OpNode], order: NodeOrder) -> None:
        """Visit these nodes once, in program order."""
        self.touched = set()
        for node in nodes:
            if node not in self.gone and (made := self._changed(node)):
                order.insert_before(node, made)

    def _rules_for(self, op_type: str) -> list[tuple[Rule, Pattern]]:
        if op_type not in self.by_op:
            self.by_op[op_type] = [
                (rule, pattern) for rule in self.rules for pattern in rule.patterns if pattern.names(op_type)
            ]
        return self.by_op[op_type]

    def _changed(self, node: OpNode) -> list[OpNode]:
        """Return the nodes that the first matching rule inserts before this node; empty if no rule applies."""
        for rule, pattern in self._rules_for(node.op_type):
            found = find_match(pattern, node)
            if found is None:
                continue
            build = Builder(self.context, lambda: self.names, found.nodes)
            try:
                result = rule.change(build, node, **found.captures)
            except ShapeError as error:
                if isinstance(error, UnknownOperatorError) and not rule.is_ours:
                    raise UnknownOperatorError(f"rule {rule.name!r}: {error}") from None
                result = str(error)
            except INVALID_ARGUMENTS as error:
                if all(map(self.context.passes_shape_rule, found.nodes)):
                    raise
                result = f"its arguments are invalid: {error}"
            _take_placement(node, result, build.nodes)
            why = self._refusal(rule, node, result)
            if why is None:
                self.journal.merged(self.ir, build.replaced)
                self._replace(rule, found, result, build.non_finite)
                return build.nodes
            for made in reversed(build.nodes):
                made.inputs = ()
            if why:
                self.journal.decline(rule.name, node.name, why)
        return []

    def _refusal(self, rule: Rule, node: OpNode, result: Any) -> str | None:
        """Return why a result is rejected, an empty string if the rule gave no reason, or None if it is accepted."""
        if result is None or isinstance(result, str):
            return result or ""
        results = _listed(result)
        if len(results) != len(node.outputs):
            raise GraphError(
                f"rule {rule.name!r} returns {len(results)} tensors for the {len(node.outputs)} of {node!r}"
            )
        for old, new in zip(node.outputs, results, strict=True):
            if new is None and old._uses:
                raise GraphError(f"rule {rule.name!r} returns None for {old!r}, which is read")
            if new is None or new is old:
                continue
            if not self.context.agree(old, new):
                raise GraphError(f"rule {rule.name!r} returns {new!r} for {old!r}")
            if why := self.context.objection(old, new):
                return why
        return "" if all(new is None or new is old for old, new in zip(node.outputs, results, strict=True)) else None

    def _replace(self, rule: Rule, found: Match, result: Any, non_finite: tuple[str, ...]) -> None:
        node = found.node
        for old, new in zip(node.outputs, _listed(result), strict=True):
            if new is not None and new is not old:
                self.touched.update(old._uses)
                if new.producer is not None:
                    self.touched.add(new.producer)
                self.context.replace(old, new)
        self.count += 1
        self.journal.changed(rule.name, node.name, node.origins, non_finite)
        self._let_go(node)

    def _let_go(self, node: OpNode) -> None:
        """Remove a node that is no longer needed, and those that only it needed."""
        left = [node]
        while left:
            one = left.pop()
            if one in self.gone or not self.context.is_idle(one):
                continue
            self.gone.add(one)
            sources = [source for source in one.inputs if source.producer is not None]
            one.inputs = ()
            for source in sources:
                if source.producer is not None:
                    left.append(source.producer)
                self.touched.update(source._uses)  # a value with fewer readers may match now


def _take_placement(node: OpNode, result: Any, made: Sequence[OpNode]) -> None:
    """Give new tensors the placement on the mesh of those that they replace."""
    if result is None or isinstance(result, str):
        return
    for old, new in zip(node.outputs, _listed(result), strict=False):
        if new is not None and new.placement is None and new.producer in made:
            new.placement = old.placement


def _listed(result: Any) -> list[TensorMeta | None]:
    return list(result) if isinstance(result, (list, tuple)) else [result]
