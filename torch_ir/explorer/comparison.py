"""Two graphs for one page: what became of each node, and which node of the one is which of the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch_ir.analysis.graph_diff.differ import Diff, diff
from torch_ir.explorer.page_data import Marked, Side, Texts
from torch_ir.ir import IR

Row = list[Any]  # a status, the places of a node in the first graph and in the second, and details


def compared(
    one: IR,
    other: IR,
    texts: Texts,
    titles: tuple[str, str],
    sizes: Mapping[str, int],
    placeholders: Collection[str],
) -> tuple[list[Side], list[Row]]:
    """The two sides, and a row for each node of either.

    A size that only one of the graphs leaves open is given to that one.
    """
    found = diff(one, other)
    graphs = found.first, found.second  # those given, or copies with calls put inline
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
    """The marks of one of the graphs that were compared, and of its functions."""
    functions = {names[at]: _marked(inner, at) for names, inner in found.functions.items()}
    changes = {name: status for name, status in found.marks()[at].items() if status != "same"}
    return Marked(placeholders, changes, functions)
