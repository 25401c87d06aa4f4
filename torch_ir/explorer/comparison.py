"""Data for comparing two graphs on one page: the status of each node, matching nodes, and what happened to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch_ir.analysis.graph_diff.differ import Diff, diff
from torch_ir.analysis.graph_diff.events import Event, events, paired
from torch_ir.analysis.graph_diff.node_diff import NodeDiff
from torch_ir.explorer.page_data import Beside, Marked, Side, Texts
from torch_ir.ir import IR

ONCE = "computed once"
Row = list[Any]  # status, positions of a node in the first and second graph, details


def compared(
    one: IR,
    other: IR,
    texts: Texts,
    titles: tuple[str, str],
    sizes: Mapping[str, int],
    placeholders: Collection[str],
    beside: Beside,
) -> tuple[list[Side], list[Row], list[Row]]:
    """Return the two sides, a row for each node of either, and what happened: a title and the numbers of its rows.

    A size that only one of the graphs leaves open is set for that one. What is shown beside nodes belongs to the first.
    """
    found = diff(one, other)
    graphs = found.first, found.second  # the given ones, or copies with calls inlined
    known = {name for ir in graphs for name in ir.symbols}
    own = [{name: size for name, size in sizes.items() if name in ir.symbols or name not in known} for ir in graphs]
    rows = paired(found)
    happened = events(found, rows)
    status = _statuses(rows, happened)
    sides = [
        Side(
            ir,
            texts,
            titles[at] or ("before", "after")[at],
            own[at],
            _marked(found, at, rows, status, placeholders),
            Beside() if at else beside,
        )
        for at, ir in enumerate(graphs)
    ]
    places = [{node: place for place, node in enumerate(ir.nodes)} for ir in graphs]
    numbers = {row: number for number, row in enumerate(rows)}
    listed = [
        [
            texts(status[row]),
            places[0][row.first] if row.first else -1,
            places[1][row.second] if row.second else -1,
            [texts(text) for text in row.details],
        ]
        for row in rows
    ]
    return sides, listed, [[texts(event.title), [numbers[row] for row in event.rows]] for event in happened]


def _statuses(rows: Sequence[NodeDiff], happened: Sequence[Event]) -> dict[NodeDiff, str]:
    """Return the status of each row; nodes that a pass computes once are not among the added ones."""
    once = {row: ONCE for event in happened if event.kind == "once" for row in event.rows if row.first is None}
    return {row: once.get(row, row.status) for row in rows}


def _marked(
    found: Diff, at: int, rows: Sequence[NodeDiff], status: Mapping[NodeDiff, str], placeholders: Collection[str] = ()
) -> Marked:
    """Return the marks of one of the compared graphs, and of its functions."""
    functions = {}
    for names, inner in found.functions.items():
        inside = paired(inner)
        functions[names[at]] = _marked(inner, at, inside, {row: row.status for row in inside})
    changes = {row.names[at]: status[row] for row in rows if status[row] not in ("same", ONCE)}
    return Marked(placeholders, {name: how for name, how in changes.items() if name is not None}, functions)
