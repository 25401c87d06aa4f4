"""Data for comparing two graphs on one page: the status of each node, and matching nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch_ir.analysis.graph_diff.differ import Diff, diff
from torch_ir.explorer.page_data import Marked, Side, Texts
from torch_ir.ir import IR

Row = list[Any]  # status, positions of a node in the first and second graph, details


def compared(
    one: IR, other: IR, texts: Texts, titles: tuple[str, str], sizes: Mapping[str, int], placeholders: Collection[str]
) -> tuple[list[Side], list[Row]]:
    """Return the two sides, and a row for each node of either.

    A size that only one of the graphs leaves open is set for that one.
    """
    found = diff(one, other)
    graphs = found.first, found.second  # the given ones, or copies with calls inlined
    known = {name for ir in graphs for name in ir.symbols}
    own = [{name: size for name, size in sizes.items() if name in ir.symbols or name not in known} for ir in graphs]
    sides = [
        Side(ir, texts, titles[at] or ("before", "after")[at], own[at], _marked(found, at, placeholders))
        for at, ir in enumerate(graphs)
    ]
    places = [{node: place for place, node in enumerate(ir.nodes)} for ir in graphs]
    rows = [
        [
            texts(row.status),
            places[0][row.first] if row.first else -1,
            places[1][row.second] if row.second else -1,
            [texts(text) for text in row.details],
        ]
        for row in found.nodes
    ]
    return sides, rows


def _marked(found: Diff, at: int, placeholders: Collection[str] = ()) -> Marked:
    """Return the marks of one of the compared graphs, and of its functions."""
    functions = {names[at]: _marked(inner, at) for names, inner in found.functions.items()}
    changes = {name: status for name, status in found.marks()[at].items() if status != "same"}
    return Marked(placeholders, changes, functions)
