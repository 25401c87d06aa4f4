"""Diff of two graphs, node by node, ignoring the names of nodes and tensors.

    found = diff(one, other)
    found.is_equal            # the same operators, arguments, order, weights, wiring and signature
    print(found)              # node 17, aten.sum.dim_IntList: dim [1] / [2]
    found.nodes               # every node of both: same, renamed, changed, added or removed
    found.marks()             # the same by name, for pictures

Functions are compared with functions, each pair once, and calls with calls. Calls are inlined only if one side has
none, or if the sides have different numbers of them and stay small. Fused operators are never inlined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch_ir.analysis.cost_model.node_costs import is_open
from torch_ir.analysis.graph_diff import signature_diff
from torch_ir.analysis.graph_diff.alignment import Pair, in_order
from torch_ir.analysis.graph_diff.matching import matched
from torch_ir.analysis.graph_diff.node_diff import (
    STATUSES,
    NodeDiff,
    arguments,
    both_programs,
    has_other_names,
    marks_of,
    node_text,
    properties,
    reads,
)
from torch_ir.analysis.graph_diff.replacements import SHOWN, Replacement, replacements, with_replacements
from torch_ir.analysis.graph_diff.tensor_pairs import Counterparts
from torch_ir.errors import GraphError, listed
from torch_ir.ir import IR, FunctionRef, OpNode
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.functions import further_entries, inline_all, op_counts

IGNORABLE = ("order", "weights")
_MOST_INLINE = 20_000  # nodes of both graphs, where calls could be compared with calls instead


@dataclass(frozen=True)
class Diff:
    """The differences of two graphs, one line each; empty if they are equal.

    `nodes` are those of both graphs in program order, `besides` the lines on everything else, `functions` the diffs of
    functions by the names of both. `first` and `second` are the compared graphs: the given ones, or copies with calls
    inlined.
    """

    differences: tuple[str, ...]
    first: IR = field(repr=False)
    second: IR = field(repr=False)
    nodes: tuple[NodeDiff, ...] = field(repr=False)
    besides: tuple[str, ...] = field(repr=False)
    functions: Mapping[tuple[str, str], Diff] = field(repr=False)

    @property
    def is_equal(self) -> bool:
        """Whether there are no differences."""
        return not self.differences

    @property
    def summary(self) -> dict[str, int]:
        """Number of nodes by status."""
        counts = Counter(row.status for row in self.nodes)
        return {status: counts[status] for status in STATUSES}

    def marks(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the status of every node by name, in the first graph and in the second."""
        return marks_of(self.nodes)

    def counterparts(self) -> dict[str, str]:
        """Map the name of each node of the first graph that has a match in the second to its name there."""
        return {row.first.name: row.second.name for row in self.nodes if row.first and row.second}

    @cached_property
    def replacements(self) -> tuple[Replacement, ...]:
        """Groups of nodes of the first graph that passes replaced in the second: fused, folded, merged."""
        return tuple(replacements(self.nodes))

    def to_dict(self) -> dict[str, Any]:
        """Return the diff for `json.dumps`."""
        return {
            "is_equal": self.is_equal,
            "summary": self.summary,
            "differences": list(self.differences),
            "nodes": [row.to_dict() for row in self.nodes],
            "replacements": [{"first": list(each.first), "second": list(each.second)} for each in self.replacements],
            "functions": [
                {"first": mine, "second": its, **found.to_dict()} for (mine, its), found in self.functions.items()
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self.differences) or "the graphs are equal"


def diff(one: IR, other: IR, *, ignore_origins: bool = True, ignore: Collection[str] = ()) -> Diff:
    """Compare two graphs, ignoring the names of nodes, tensors, functions and models.

    Values are compared with their types: 1, 1.0 and True differ. Weights are identified by key, and are equal if kind
    and values are. Symbolic sizes are identified by name. Without `ignore_origins`, nodes must also have the same
    module calls and source lines. `ignore` may contain `order`, of nodes and weights, and `weights`: then any weight
    equals any other.
    """
    require_graph(one, "diff")
    require_graph(other, "diff")
    for word in ignore:
        if word not in IGNORABLE:
            raise GraphError(f"{word!r:.60} cannot be ignored, only {', '.join(IGNORABLE)}")
    if _is_clearer_inline(one, other):
        one, other = _put_inline(one), _put_inline(other)
    return _Comparison(one, other, _Rules(not ignore_origins, "order" not in ignore, "weights" not in ignore)).result()


def _is_clearer_inline(one: IR, other: IR) -> bool:
    mine, its = (sum(map(is_open, ir.nodes)) for ir in (one, other))
    if mine == its:
        return False
    return not mine or not its or op_counts(one).total() + op_counts(other).total() <= _MOST_INLINE


def _put_inline(ir: IR) -> IR:
    copy = ir.clone()
    inline_all(copy, is_open)
    return copy


class _Rules(NamedTuple):
    """Properties compared besides the computation: origins of nodes, their order, and the weights that they read."""

    origins: bool
    order: bool
    weights: bool


class _Comparison:
    """Compares two graphs; a pair of functions that many nodes reference is compared once."""

    def __init__(self, one: IR, other: IR, rules: _Rules) -> None:
        self._graphs = one, other
        self._rules = rules
        self._pairs = matched(one, other)
        self._counterparts = Counterparts(one, other, self._pairs, with_weights=rules.weights)

    def result(self) -> Diff:
        one, other = self._graphs
        functions = {names: self._inside(*names) for names in self._bodies()}
        places = list(both_programs(one, other, self._pairs))
        rows = [self._row(*place) for place in places]
        before, after = list(self._ahead()), list(self._behind())
        lines = (line for place, row in zip(places, rows, strict=True) for line in _lines(*place, row))
        nodes = tuple(_looked_into(row, functions) for row in with_replacements(rows))
        differences = (*before, *_of_functions(functions), *lines, *after)
        return Diff(differences, one, other, nodes, (*before, *after), functions)

    def _ahead(self) -> Iterator[str]:
        """Yield the differences to list before the nodes."""
        one, other = self._graphs
        yield from signature_diff.signatures(one, other, with_modules=self._rules.origins)
        if self._rules.weights:
            yield from signature_diff.weights(one, other, with_order=self._rules.order)
        free = further_entries(one).keys(), further_entries(other).keys()
        for name in sorted(free[0] ^ free[1]):
            yield f"function {name!r} only in the {'first' if name in free[0] else 'second'}"
        if self._rules.order:
            yield from _moved(other, self._pairs)

    def _behind(self) -> Iterator[str]:
        """Yield the differences to list after the nodes."""
        yield from signature_diff.returns(*self._graphs, self._counterparts)
        yield from signature_diff.sizes(*self._graphs, self._counterparts)

    def _bodies(self) -> list[tuple[str, str]]:
        """Return pairs of functions: those referenced by matched nodes, and unreferenced ones of equal name."""
        one, other = self._graphs
        if not one.functions and not other.functions:
            return []
        both = (names for left, right in self._pairs for names in _function_pairs(one.nodes[left], other.nodes[right]))
        free = further_entries(one).keys() & further_entries(other).keys()
        return list(dict.fromkeys([*both, *((name, name) for name in sorted(free))]))

    def _inside(self, mine: str, its: str) -> Diff:
        bodies = self._graphs[0].functions[mine], self._graphs[1].functions[its]
        return _Comparison(*bodies, self._rules).result()

    def _row(self, left: int | None, right: int | None) -> NodeDiff:
        one, other = self._graphs
        if left is None or right is None:
            first, second = None if left is None else one.nodes[left], None if right is None else other.nodes[right]
            return NodeDiff("added" if left is None else "removed", first, second)
        mine, its = one.nodes[left], other.nodes[right]
        details = (
            *reads(arguments(one, mine), arguments(other, its), self._counterparts),
            *properties(mine, its, with_origins=self._rules.origins),
        )
        status = "changed" if details else "renamed" if has_other_names(mine, its) else "same"
        return NodeDiff(status, mine, its, details)


def _of_functions(functions: Mapping[tuple[str, str], Diff]) -> Iterator[str]:
    for (mine, its), found in functions.items():
        title = f"function {mine!r}" if mine == its else f"function {mine!r} / {its!r}"
        yield from (f"{title}: {text}" for text in found.differences)


def _lines(left: int | None, right: int | None, row: NodeDiff) -> Iterator[str]:
    """Yield the differences of a node."""
    if left is None or right is None:
        place, side = (right, "second") if left is None else (left, "first")
        yield f"node {place}: {node_text(row.node)} only in the {side}"
    else:
        places = f"node {left}" if left == right else f"node {left} / {right}"
        yield from (f"{places}, {row.node.op_type}: {text}" for text in row.details)


def _moved(other: IR, pairs: list[Pair]) -> Iterator[str]:
    """Yield a line on the nodes whose order changed."""
    kept = {right for _, right in in_order(pairs)}
    names = [other.nodes[right].name for _, right in pairs if right not in kept]
    if names:
        yield f"nodes come in another order: {listed(names, SHOWN)}"


def _looked_into(row: NodeDiff, functions: Mapping[tuple[str, str], Diff]) -> NodeDiff:
    """Mark a node as changed if functions that it references differ."""
    if not functions or not row.first or not row.second:
        return row
    names = dict.fromkeys(_function_pairs(row.first, row.second))
    differing = [f"function {its!r} differs" for mine, its in names if not functions[mine, its].is_equal]
    return replace(row, status="changed", details=(*row.details, *differing)) if differing else row


def _function_pairs(one: OpNode, other: OpNode) -> Iterator[tuple[str, str]]:
    """Yield pairs of functions that two nodes reference at the same attribute, also inside lists."""
    for mine, its in zip(_references(one), _references(other), strict=False):
        if mine[0] == its[0]:  # otherwise the attribute names differ, which is reported elsewhere
            yield str(mine[1]), str(its[1])


def _references(node: OpNode) -> list[tuple[str, FunctionRef]]:
    values = ((name, value) for name in sorted(node.attrs) for value in values_in(node.attrs[name]))
    return [(name, value) for name, value in values if isinstance(value, FunctionRef)]
