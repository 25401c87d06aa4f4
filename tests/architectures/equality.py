"""Compare the graph of fast capture with that of torch.export in one process, where sets have one order.

python -m tests.architectures.equality [--open] [NAME ...]      every architecture, or those named; prints a line each

With --open, the batch varies, and the length of what is a sequence.
"""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim

from tests.architectures import Architecture, architectures
from tests.architectures.sweep import select
from tests.proof import to_meta
from torch_ir import extract_ir
from torch_ir.capture.crosscheck import first_difference
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.fast.shape_tensors import NotCoveredError
from torch_ir.errors import CaptureWarning

SAME = "same bytes"


def open_sizes(inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, Any]]:
    """The first dimension of every input varies, and the second of one that is no image."""
    return {name: dict.fromkeys((0, 1) if tensor.ndim in (2, 3) else (0,), Dim.AUTO) for name, tensor in inputs.items()}


def compare(architecture: Architecture, is_open: bool = False) -> str:
    """Compare both captures of a model on meta: the same bytes, the reason for falling back, or the difference."""
    with torch.device("meta"):
        model = architecture.build()
    inputs = to_meta(architecture.inputs())
    varying = open_sizes(inputs) if is_open else None
    try:
        with warnings.catch_warnings():  # rotary embeddings before transformers 5.19 ask for it
            warnings.filterwarnings("ignore", ".* reads torch.is_autocast_enabled", CaptureWarning)
            quick = record_fast(model, (), inputs, dynamic_shapes=varying)
    except NotCoveredError as reason:
        return str(reason).partition("\n")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # values lost on meta are expected here
        exact = extract_ir(model, (), kwargs=inputs, dynamic_shapes=varying, capture="export")
    quick.model_name = exact.model_name
    return first_difference(exact, quick) or SAME


def main(names: list[str]) -> int:
    is_open = "--open" in names
    names = [name for name in names if name != "--open"]
    outcomes: dict[str, str] = {}
    for each in select(names) if names else architectures():
        outcomes[each.name] = compare(each, is_open)
        print(each.name, outcomes[each.name], sep=": ", flush=True)
    same = sum(outcome == SAME for outcome in outcomes.values())
    print(f"{len(outcomes)} architectures, {same} recorded with the bytes of torch.export")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
