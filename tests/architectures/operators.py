"""The operators of every architecture, stored so that tests need not capture 264 models.

python -m tests.architectures.operators      capture every architecture and write the file
"""

import json
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from tests.architectures import NOT_CAPTURED, Architecture, architectures
from torch_ir import TorchIRError, extract_ir

FILE = Path(__file__).parents[1] / "data" / "architecture_operators.json"
_SHOWN = 3  # architectures that are named for an operator


def stored_operators() -> dict[str, list[str]]:
    """Return the op_types of all architectures, each with some architectures that use it."""
    found: dict[str, list[str]] = json.loads(FILE.read_text())
    return found


def operators_of(architecture: Architecture) -> set[str]:
    """Capture an architecture without weights, or with them if it needs them, and return its op_types."""
    with torch.device("meta"):
        model = architecture.build()
    inputs = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), architecture.inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ir = extract_ir(model, (), kwargs=inputs)
        except TorchIRError:
            ir = extract_ir(architecture.build(), (), kwargs=architecture.inputs(), strict=False)
    return {node.op_type for node in ir.all_nodes() if not node.is_call}


def collect(chosen: Iterable[Architecture]) -> dict[str, list[str]]:
    """Return the op_types of these architectures, each with the first that use it."""
    found: dict[str, list[str]] = {}
    for architecture in chosen:
        for op_type in operators_of(architecture):
            found.setdefault(op_type, []).append(architecture.name)
    return {op_type: sorted(names)[:_SHOWN] for op_type, names in sorted(found.items())}


def main() -> None:
    found = collect(each for each in architectures() if each.name not in NOT_CAPTURED)
    rows = ",\n".join(f"{json.dumps(op_type)}: {json.dumps(names)}" for op_type, names in found.items())
    FILE.write_text(f"{{\n{rows}\n}}\n")


if __name__ == "__main__":
    main()
