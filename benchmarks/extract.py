"""What extract_ir adds to bare torch.export of the same model on the same inputs."""

import torch

import torch_ir
from benchmarks.measure import milliseconds, race, ratios, table
from benchmarks.models import EXTRACTED, Case


def run(repeats: int = 9) -> str:
    """Wall and CPU time, and their ratio to torch.export."""
    header = ["model", "torch.export", "extract_ir", "ratio, wall (range)", "ratio, CPU (range)"]
    return table(header, [_row(case, repeats) for case in EXTRACTED])


def _row(case: Case, repeats: int) -> list[str]:
    model, inputs = case.on_meta()

    def bare() -> object:
        with torch.no_grad():
            return torch.export.export(model, (), inputs, strict=False)

    times = race(
        {"torch.export": bare, "extract_ir": lambda: torch_ir.extract_ir(model, (), kwargs=inputs)},
        repeats,
    )
    theirs, ours = times["torch.export"], times["extract_ir"]
    spent = [milliseconds(theirs.wall), milliseconds(ours.wall)]
    return [case.name, *spent, ratios(ours.wall, theirs.wall), ratios(ours.cpu, theirs.cpu)]
