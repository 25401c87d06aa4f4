"""Extraction of common models against torch.export."""

from functools import partial

import torch_ir
from benchmarks.measure import median_time, race, ratios, table
from benchmarks.models import EXTRACTED, Case, torch_export

HEADER = [
    "model", "nodes", "torch.export", "extract_ir", "times faster (range)", "same bytes",
    'capture="export" / torch.export (range)',
]  # fmt: skip


def run(repeats: int = 7) -> str:
    """Return median times and ratios, and whether the graph equals that of `capture="export"` exactly."""
    return table(HEADER, [_row(case, repeats) for case in EXTRACTED])


def _row(case: Case, repeats: int) -> list[str]:
    model, inputs = case.on_meta()
    bare = partial(torch_export, model, inputs)
    quick = partial(torch_ir.extract_ir, model, (), kwargs=inputs)
    exact = partial(quick, capture="export")
    samples = race({"bare": bare, "quick": quick, "exact": exact}, repeats, turns={"quick": 5})
    theirs, ours, converted = (each.wall for each in samples.values())
    ir = quick()
    is_same = "yes" if ir.to_json() == exact().to_json() else "no"
    spent = [median_time(theirs), median_time(ours), ratios(theirs, ours)]
    return [case.name, str(len(ir.nodes)), *spent, is_same, ratios(converted, theirs)]
