"""Explorer: a graph as one HTML file, with modules that open, costs, search, and side-by-side comparison. No torch."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from torch_ir.draw.named_placeholders import named_placeholders
from torch_ir.explorer.code_lines import python_lines, source_lines
from torch_ir.explorer.comparison import Row, compared
from torch_ir.explorer.html_page import page
from torch_ir.explorer.page_data import Beside, Marked, Side, Texts, Values
from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import write_text
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ir.graph.given_graph import ExampleInputs, Model, graph_of, require_graph

__all__ = ["explore"]


def explore(
    ir: IR | Model,
    path: str | os.PathLike[str],
    *,
    against: IR | None = None,
    sizes: Mapping[str, int] | None = None,
    placeholders: Collection[str] = (),
    titles: tuple[str, str] = ("", ""),
    values: Mapping[str, Values] | None = None,
    python: str = "",
    sources: str | os.PathLike[str] | None = None,
    example_inputs: ExampleInputs | None = None,
) -> None:
    """Write a page that shows a graph, or two graphs side by side with their differences marked.

    `sizes` sets sizes that the graph leaves open, for costs in numbers; nodes named in `placeholders` are red. `titles`
    are those of the graph and of `against`; by default the names of their models. A model is captured first, with
    `example_inputs`.

    `values` are comparisons of runtimes with a golden pack, by the name of the runtime: nodes can be coloured by error.
    `python` is the code that `to_python` generates for the graph, and `sources` a folder with the source of the model;
    their lines are shown beside the nodes.
    """
    ir = graph_of(ir, example_inputs, "explore")
    if against is not None:
        require_graph(against, "explore(against=)")
    red = named_placeholders(placeholders, *([ir] if against is None else [ir, against]))
    beside = Beside(values or {}, python_lines(python), {} if sources is None else source_lines(ir, sources))
    with uncollected():
        write_text(path, _page(ir, against, sizes or {}, red, titles, beside))


def _page(
    ir: IR,
    against: IR | None,
    sizes: Mapping[str, int],
    placeholders: Collection[str],
    titles: tuple[str, str],
    beside: Beside,
) -> str:
    texts = Texts()
    differences: list[Row] = []
    happened: list[Row] = []
    if against is None:
        sides = [Side(ir, texts, titles[0], sizes, Marked(placeholders), beside)]
    else:
        sides, differences, happened = compared(ir, against, texts, titles, sizes, placeholders, beside)
    record = {"sides": [side.record() for side in sides], "differences": differences, "events": happened}
    return page({**record, "texts": texts.table()})
