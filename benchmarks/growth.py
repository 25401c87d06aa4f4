"""Extraction time by number of layers, for Llamas at the widths of the 405B model."""

from functools import partial

import torch_ir
from benchmarks.deep import FORMS
from benchmarks.measure import Samples, median_time, race, table
from benchmarks.models import Case, llama_405b, tokens, torch_export

LAYERS = (1, 2, 4, 8, 16, 32, 64, 126)
EXPORTED = 8  # torch.export runs up to this number of layers


def run(repeats: int = 5) -> str:
    """Return median times of every form of the graph, and of torch.export for few layers."""
    return table(["layers", "nodes", *FORMS, "torch.export"], [_row(layers, repeats) for layers in LAYERS])


def _row(layers: int, repeats: int) -> list[str]:
    model, inputs = Case("Llama", partial(llama_405b, layers), tokens).on_meta()
    extract = partial(torch_ir.extract_ir, model, (), kwargs=inputs)
    ways = {name: partial(extract, **options) for name, options in FORMS.items()}
    times = race(ways, repeats)
    theirs = Samples()
    if layers <= EXPORTED:
        theirs = race({"torch.export": partial(torch_export, model, inputs)}, 3)["torch.export"]
    spent = [median_time(times[name].wall) for name in FORMS]
    return [str(layers), str(len(extract().nodes)), *spent, median_time(theirs.wall) if theirs.wall else ""]
