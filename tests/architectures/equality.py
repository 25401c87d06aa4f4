"""Compare the graph of fast capture with that of torch.export in one process, where sets have one order.

python -m tests.architectures.equality [NAME ...]      every architecture, or those named; prints a line each
"""

import sys
import warnings

import torch

from tests.architectures import Architecture, architectures
from tests.architectures.sweep import select
from tests.proof import to_meta
from torch_ir import extract_ir
from torch_ir.capture.crosscheck import first_difference
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError

SAME = "same bytes"


def compare(architecture: Architecture) -> str:
    """Compare both captures of a model on meta: the same bytes, the reason for falling back, or the difference."""
    with torch.device("meta"):
        model = architecture.build()
    inputs = to_meta(architecture.inputs())
    try:
        quick = record_fast(model, (), inputs)
    except NotCoveredError as reason:
        return str(reason).partition("\n")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values lost on meta are expected here
        exact = extract_ir(model, (), kwargs=inputs, capture="export")
    quick.model_name = exact.model_name
    return first_difference(exact, quick) or SAME


def main(names: list[str]) -> int:
    outcomes = {each.name: compare(each) for each in (select(names) if names else architectures())}
    for name, outcome in outcomes.items():
        print(name, outcome, sep=": ")
    same = sum(outcome == SAME for outcome in outcomes.values())
    print(f"{len(outcomes)} architectures, {same} recorded with the bytes of torch.export")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
