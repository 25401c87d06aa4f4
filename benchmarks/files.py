"""Saving and loading the graph of an 8-layer Llama, against torch's own format for exported programs."""

import statistics
import tempfile
from pathlib import Path

import torch

import torch_ir
from benchmarks.measure import Samples, milliseconds, race, ratios, table
from benchmarks.models import EXTRACTED


def run(repeats: int = 9) -> str:
    """Time and size of save and load; torch.export is given the program without weights, too."""
    model, inputs = EXTRACTED[-1].on_meta()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs)
    with torch.no_grad():
        program = torch.export.export(model, (), inputs, strict=False)
    nodes = len(ir.nodes)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "model.json", Path(folder) / "model.pt2"
        saved = race({"torch": lambda: torch.export.save(program, theirs), "ours": lambda: ir.save(ours)}, repeats)
        loaded = race({"torch": lambda: torch.export.load(theirs), "ours": lambda: torch_ir.IR.load(ours)}, repeats)
        sizes = [file.stat().st_size for file in (theirs, ours)]
    rows = [_row("save", saved, nodes), _row("load", loaded, nodes)]
    kilobytes = [f"{size / 1e3:.0f} kB" for size in sizes]
    rows.append(["size", *kilobytes, f"{sizes[1] / nodes:.0f} bytes", f"{sizes[0] / sizes[1]:.1f}"])
    return f"{nodes} nodes.\n\n" + table(["", "torch.export", "torch_ir", "per node", "torch.export / torch_ir"], rows)


def _row(what: str, times: dict[str, Samples], nodes: int) -> list[str]:
    theirs, ours = times["torch"].wall, times["ours"].wall
    per_node = f"{statistics.median(ours) / nodes * 1e6:.1f} µs"
    return [what, milliseconds(theirs), milliseconds(ours), per_node, ratios(theirs, ours)]
