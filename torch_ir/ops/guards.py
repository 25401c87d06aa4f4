"""Guard operators: they raise if an assumption of a recorded graph does not hold, and have no outputs.

torch_ir.decision.default(value=gt, assumed=True, place="model.py:12")
torch_ir.fixed_shape.default(value=nonzero, shape=[5, 2], place="model.py:14")
torch_ir.fixed_value.default(value=grid, expected=fixed_grid, place="grid")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from torch_ir.errors import GuardError

DECISION = "torch_ir.decision.default"
FIXED_SHAPE = "torch_ir.fixed_shape.default"
FIXED_VALUE = "torch_ir.fixed_value.default"
OFFSET = " (storage_offset)"  # suffix of `IR.fixed_layout` if the line reads the storage offset

_library: Any = torch.library.Library("torch_ir", "DEF")  # type: ignore[no-untyped-call]  # torch does not annotate it
_library.define("decision(Tensor value, Scalar assumed, str place) -> ()")
_library.define("fixed_shape(Tensor value, int[] shape, str place) -> ()")
_library.define("fixed_value(Tensor value, Tensor expected, str place) -> ()")
_MOST_SHOWN = 12  # elements of a tensor in a message


@torch.library.impl(_library, "decision", "CompositeExplicitAutograd")
def _decision(value: torch.Tensor, assumed: Any, place: str) -> None:
    found = value.item()
    if found != assumed and (found == found or assumed == assumed):  # NaN equals NaN here
        values = f"at capture the value was {assumed}, now it is {found}"
        if isinstance(assumed, bool):
            raise GuardError(
                f"{place or 'the model'} branches on data: {values}; capture with explore=8 (--explore 8) to include "
                "both branches",
                place=place,
            )
        raise GuardError(
            f"{place or 'the model'} reads a number from the data: {values}; the graph is only for that number: "
            "compute with the tensor instead, without .item(), or capture for other data",
            place=place,
        )


@torch.library.impl(_library, "fixed_shape", "CompositeExplicitAutograd")
def _fixed_shape(value: torch.Tensor, shape: Sequence[int], place: str) -> None:
    if list(value.shape) != list(shape):
        raise GuardError(
            f"{place or 'the model'} has a data-dependent size: at capture the shape was {list(shape)}, "
            f"now it is {list(value.shape)}; torch.export can capture a varying size",
            place=place,
        )


@torch.library.impl(_library, "fixed_value", "CompositeExplicitAutograd")
def _fixed_value(value: torch.Tensor, expected: torch.Tensor, place: str) -> None:
    if not torch.equal(value, expected):
        values = f"{_shown(expected)}, not for {_shown(value)}"
        raise GuardError(f"the graph is only for {place} = {values}; capture with fixed= for other values")


def _shown(tensor: torch.Tensor) -> str:
    return str(tensor.tolist()) if tensor.numel() <= _MOST_SHOWN else f"a tensor of shape {list(tensor.shape)}"


decision: Any = torch.ops.torch_ir.decision.default
fixed_shape: Any = torch.ops.torch_ir.fixed_shape.default
fixed_value: Any = torch.ops.torch_ir.fixed_value.default
for _operator in (decision, fixed_shape, fixed_value):
    # without values, there is nothing to guard; register_fake would look through every module of the process
    _library.impl(_operator, lambda *args: None, "Meta")
    has_side_effect(_operator)  # fx must keep it, though it has no users
