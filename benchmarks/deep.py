"""Extraction of a Llama of 126 layers at the widths of the 405B model, with origins, against torch.export."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch_ir
from benchmarks.measure import median_time, race, ratios, table
from benchmarks.models import Case, llama_405b, tokens, torch_export
from torch_ir import IR

HEADER = [
    "graph",
    "top-level nodes",
    "all nodes",
    "time",
    "times faster than torch.export (range)",
    "same graph",
]
FORMS: dict[str, dict[str, Any]] = {
    "flat": {},
    "function form": {"blocks": "function"},
}


def run(repeats: int = 2) -> str:
    """Return median times and ratios, and whether each form, inlined, equals the graph of torch.export exactly."""
    model, inputs = Case("Llama-405B", llama_405b, tokens).on_meta()
    extract = partial(torch_ir.extract_ir, model, (), kwargs=inputs)
    ways: dict[str, Callable[[], IR]] = {name: partial(extract, **options) for name, options in FORMS.items()}
    exact = extract(capture="export").to_json()  # also warms up torch.export
    graphs = {name: way() for name, way in ways.items()}
    contestants: dict[str, Callable[[], Any]] = {"torch.export": partial(torch_export, model, inputs), **ways}
    times = race(contestants, repeats, turns=dict.fromkeys(ways, 7), is_warm=True)
    theirs = times["torch.export"].wall
    rows = [["torch.export", "", "", median_time(theirs), "", ""]]
    for name, ir in graphs.items():
        sizes = [str(len(ir.nodes)), str(sum(1 for _ in ir.all_nodes()))]
        is_same = "yes" if ir.at_level("aten").to_json() == exact else "no"
        rows.append([name, *sizes, median_time(times[name].wall), ratios(theirs, times[name].wall), is_same])
    return table(HEADER, rows)
