"""The operators of the torch dialect, as a list, so that writing MLIR needs no MLIR library."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_OTHER_NAMES = {  # aliases that the dialect has under torch's other name
    "aten.__lshift__.Tensor": "aten.bitwise_left_shift.Tensor",
    "aten.__rshift__.Tensor": "aten.bitwise_right_shift.Tensor",
}


@cache
def torch_dialect() -> frozenset[str]:
    """Return the operators without side effects that torch and the torch dialect of IREE 3.13 share."""
    text = files("torch_ir.targets.mlir").joinpath("torch_dialect.txt").read_text(encoding="utf-8")
    return frozenset([*text.split(), *_OTHER_NAMES])


def dialect_name(op_type: str) -> str:
    """Return the dialect's name for an operator: `torch.aten.relu` for `aten.relu.default`."""
    return f"torch.{_OTHER_NAMES.get(op_type, op_type).removesuffix('.default')}"
