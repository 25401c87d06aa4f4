"""First extraction in a fresh process against the first torch.export in another, including imports on demand."""

import json
import sys
import time

import torch_ir
from benchmarks.measure import measured_alone, median_time, ratios, table
from benchmarks.models import EXTRACTED, torch_export

SIDES = ("torch.export", "extract_ir")


def run(repeats: int = 3) -> str:
    """Return median times and ratios, with the sides taking turns."""
    rows = []
    for case in EXTRACTED:
        rounds = [
            [measured_alone("benchmarks.first_call", case.name, side) for side in SIDES] for _ in range(repeats + 1)
        ][1:]  # the first one writes bytecode
        theirs, ours = map(list, zip(*rounds, strict=True))
        rows.append([case.name, median_time(theirs), median_time(ours), ratios(theirs, ours)])
    return table(["model", *SIDES, "times faster (range)"], rows)


def child(name: str, side: str) -> float:
    """Return the seconds of the first call in this process, after the model is built."""
    model, inputs = next(case for case in EXTRACTED if case.name == name).on_meta()
    start = time.perf_counter()
    if side == "extract_ir":
        torch_ir.extract_ir(model, (), kwargs=inputs)
    else:
        torch_export(model, inputs)
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:])))
