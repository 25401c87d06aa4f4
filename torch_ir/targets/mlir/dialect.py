"""Which operators the torch dialect has: a list, so that writing MLIR needs no MLIR library."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_OTHER_NAMES = {  # the dialect has them under another name that torch has for the same
    "aten.__lshift__.Tensor": "aten.bitwise_left_shift.Tensor",
    "aten.__rshift__.Tensor": "aten.bitwise_right_shift.Tensor",
}


@cache
def torch_dialect() -> frozenset[str]:
    """The operators without side effects that torch and the torch dialect of IREE 3.13 both have."""
    text = files("torch_ir.targets.mlir").joinpath("torch_dialect.txt").read_text(encoding="utf-8")
    return frozenset([*text.split(), *_OTHER_NAMES])


def dialect_name(op_type: str) -> str:
    """`aten.relu.default` as the dialect spells it: `torch.aten.relu`."""
    return f"torch.{_OTHER_NAMES.get(op_type, op_type).removesuffix('.default')}"
