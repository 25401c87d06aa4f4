"""Operators that guard what a recorded graph takes for granted: they raise where it is otherwise, and give nothing.

torch_ir.decision.default(value=gt, assumed=True, place="model.py:12")
torch_ir.fixed_shape.default(value=nonzero, shape=[5, 2], place="model.py:14")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torch_ir.errors import GuardError

DECISION = "torch_ir.decision.default"
FIXED_SHAPE = "torch_ir.fixed_shape.default"
OFFSET = " (storage_offset)"  # ends `IR.fixed_layout` where the line asks for that

_library: Any = torch.library.Library("torch_ir", "DEF")  # type: ignore[no-untyped-call]  # torch does not annotate it
_library.define("decision(Tensor value, Scalar assumed, str place) -> ()")
_library.define("fixed_shape(Tensor value, int[] shape, str place) -> ()")


@torch.library.impl(_library, "decision", "CompositeExplicitAutograd")
def _decision(value: torch.Tensor, assumed: Any, place: str) -> None:
    found = value.item()
    if found != assumed and (found == found or assumed == assumed):  # NaN is what NaN was
        raise GuardError(
            f"{place or 'the model'} decides on data: the graph was captured where the value is {assumed}, and here it "
            f"is {found}; capture it with explore=, so that it holds both outcomes"
        )


@torch.library.impl(_library, "fixed_shape", "CompositeExplicitAutograd")
def _fixed_shape(value: torch.Tensor, shape: Sequence[int], place: str) -> None:
    if list(value.shape) != list(shape):
        raise GuardError(
            f"{place or 'the model'} makes a size of data: the graph was captured where the shape is {list(shape)}, "
            f"and here it is {list(value.shape)}; torch.export can capture a size that varies"
        )


decision: Any = torch.ops.torch_ir.decision.default
fixed_shape: Any = torch.ops.torch_ir.fixed_shape.default
for _operator in (decision, fixed_shape):
    torch.library.register_fake(_operator, lambda *args: None)  # what has no values guards nothing
    has_side_effect(_operator)  # fx must keep it, though nobody reads it
