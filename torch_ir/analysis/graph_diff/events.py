"""Changes that passes made between two graphs, from the nodes' `origins`: folded, fused, merged, rewritten, removed.

    for event in events(diff(before, after)):
        print(event.title)         # folded 53 batch_norm into conv2d

`paired` reports a node that replaces captured nodes as one that changed, instead of one added and one removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_ir.analysis.dependencies.over_weights import over_weights
from torch_ir.analysis.graph_diff.differ import Diff
from torch_ir.analysis.graph_diff.node_diff import NodeDiff, marks_of
from torch_ir.analysis.graph_diff.replacements import replaces_others
from torch_ir.ir import IR, OpNode
from torch_ir.ir.regroup.functions import FUSED

_MOST_NAMES = 6  # operators in a title
_ORDER = ("folded", "fused", "merged", "rewritten", "once", "changed", "removed", "added", "renamed")


@dataclass(frozen=True)
class Event:
    """One kind of change, how often it happened, and its nodes; `kind` is one of `_ORDER`."""

    kind: str
    title: str
    rows: tuple[NodeDiff, ...]


def paired(found: Diff) -> tuple[NodeDiff, ...]:
    """Return the nodes of a diff, with each added node joined to a removed one that it replaces.

    It is the first of those that its `origins` name and that no other node has taken. Nodes that are computed once
    replace nothing: what they compute is read by a node that does.
    """
    removed = {row.first.name: row for row in found.nodes if row.first and row.status == "removed"}
    once = set(over_weights(found.second))
    taken: dict[NodeDiff, NodeDiff] = {}
    for row in found.nodes:
        if row.status == "added" and row.second and replaces_others(row.second) and row.second not in once:
            partner = next((removed[name] for name in row.second.origins if name in removed), None)
            if partner is not None and partner.first is not None:
                taken[row] = replace(row, status="changed", first=partner.first)
                del removed[partner.first.name]
    gone = {row.first for row in taken.values()}
    return tuple(taken.get(row, row) for row in found.nodes if row.second or row.first not in gone)


def paired_marks(found: Diff) -> tuple[dict[str, str], dict[str, str]]:
    """Return the status of every node by name, as `Diff.marks` does, of `paired` nodes."""
    return marks_of(paired(found))


def events(found: Diff, rows: Sequence[NodeDiff] = ()) -> list[Event]:
    """Return what happened, most telling kinds first; each differing row belongs to one event."""
    rows = [row for row in rows or paired(found) if row.status != "same"]
    kinds = _Kinds(found)
    members: dict[tuple[str, str], list[NodeDiff]] = {}
    for row in rows:
        members.setdefault(kinds.of(row), []).append(row)
    listed = [Event(kind, _title(kind, text, kinds, inside), tuple(inside)) for (kind, text), inside in members.items()]
    return sorted(listed, key=lambda event: (_ORDER.index(event.kind), -len(event.rows)))


def _title(kind: str, text: str, kinds: _Kinds, rows: Sequence[NodeDiff]) -> str:
    count = kinds.counted(kind, rows)
    times = "once" if count == 1 else f"{count:,} times"
    return text.format(count=f"{count:,}", times=times, nodes="1 node" if count == 1 else f"{count:,} nodes")


class _Kinds:
    """Finds the kind of change of each row of a diff."""

    def __init__(self, found: Diff) -> None:
        self._once = set(over_weights(found.second)) - set(over_weights(found.first))
        nodes = [{node.name: node for node in ir.nodes} for ir in (found.first, found.second)]
        self._groups = [
            _Group(
                [nodes[0][name] for name in group.first], [nodes[1][name] for name in group.second], found, self._once
            )
            for group in found.replacements
        ]
        self._of_first = {node.name: group for group in self._groups for node in group.first}
        self._of_second = {node.name: group for group in self._groups for node in group.second}

    def of(self, row: NodeDiff) -> tuple[str, str]:
        """Return the kind of an event, and its title with a gap for the count."""
        if row.second in self._once:
            return "once", "{nodes} computed once, over weights"
        mine, its = row.names
        group = self._of_first.get(mine or "") or self._of_second.get(its or "")
        if group is not None and row.status != "renamed":
            return group.event_of(row)
        if row.status == "changed":
            return "changed", f"changed {{count}} {_label(row.node.op_type)}: {_changed_in(row)}"
        return row.status, f"{row.status} {{nodes}}"

    def counted(self, kind: str, rows: Sequence[NodeDiff]) -> int:
        """Return the number in a title: nodes folded away, and otherwise places."""
        if kind == "folded":
            return sum(1 for row in rows if self._is_gone(row))
        if kind in ("fused", "merged", "rewritten"):
            groups = {self._of_first.get(row.names[0] or "") or self._of_second.get(row.names[1] or "") for row in rows}
            return len(groups)
        return len(rows)

    def _is_gone(self, row: NodeDiff) -> bool:
        group = self._of_first.get(row.names[0] or "")
        return group is not None and row.first is not None and row.first in group.gone


class _Group:
    """Nodes of the first graph, and those that replace them in every run of the second."""

    def __init__(self, first: Sequence[OpNode], second: Sequence[OpNode], found: Diff, once: set[OpNode]) -> None:
        self.first = first
        self.second = [node for node in second if node not in once]
        kept = Counter(op for node in self.second for op in _operators(node, found.second.functions))
        self.gone = {node for node in self.first if not _taken(kept, node.op_type)}
        self._fused = [node for node in self.second if node.op_type.startswith(FUSED)]

    def event_of(self, row: NodeDiff) -> tuple[str, str]:
        stays = [node for node in self.first if node not in self.gone]
        made = _names(self.second)
        if not self.second:
            return "once", f"{{count}} {_label(row.node.op_type)} now computed once"
        if stays and self.gone and (row.first in self.gone or not self._fused):
            if {node.op_type for node in self.gone} <= {node.op_type for node in stays}:
                return "merged", f"merged {_names(self.first)} into {made}, {{times}}"
            return "folded", f"folded {{count}} {_names(self.gone, counts=False)} into {_label(stays[0].op_type)}"
        if self._fused:
            return "fused", f"fused {_names(stays or self.first)} into {made}, {{times}}"
        return "rewritten", f"rewrote {_names(self.first)} as {made}, {{times}}"


def _operators(node: OpNode, functions: Mapping[str, IR]) -> Iterator[str]:
    """Yield the operator of a node; for a fused one, those of its body."""
    body = functions.get(str(node.attrs.get("function"))) if node.op_type.startswith(FUSED) else None
    if body is None:
        yield node.op_type
    else:
        for inner in body.nodes:
            yield from _operators(inner, body.functions or functions)


def _taken(kept: Counter[str], op_type: str) -> bool:
    """Whether an operator is still there; each counts once."""
    kept[op_type] -= 1
    return kept[op_type] >= 0


def _changed_in(row: NodeDiff) -> str:
    """Return which arguments or attributes changed: `self, weight`."""
    names = dict.fromkeys(detail.split(" ", 1)[0] for detail in row.details)
    return ", ".join(list(names)[:3]) or "its place"


def _names(nodes: Iterable[OpNode], *, counts: bool = True) -> str:
    """Return the operators of nodes joined by plus signs, each with its count, in order of appearance."""
    found = Counter(_label(node.op_type) for node in sorted(nodes, key=lambda node: node.name not in node.origins))
    parts = [
        f"{name} \N{MULTIPLICATION SIGN}{count}" if counts and count > 1 else name for name, count in found.items()
    ]
    more = f" + {len(parts) - _MOST_NAMES} more" if len(parts) > _MOST_NAMES else ""
    return " + ".join(parts[:_MOST_NAMES]) + more


def _label(op_type: str) -> str:
    """Return `conv2d` for `aten.conv2d.default`, and `conv2d_relu` for `fused.conv2d_relu`."""
    parts = op_type.split(".")
    return parts[1] if len(parts) > 1 else op_type
