"""Refuse code that replaces the memory of a tensor (`t.data = value`, `t.set_`, `swap_tensors`).

A graph has values, not memory: which tensors share the old or the new memory could not be tracked. The same holds for
writes through a view whose elements share memory, because torch does not say how often each is written.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from torch_ir.capture.program.provenance import is_users_code, user_line, users_frame
from torch_ir.errors import Cause, ConversionError
from torch_ir.ir import IR
from torch_ir.ops.view_inverse import repeats_elements

_DATA: Any = torch.Tensor.data
GET_DATA, SET_DATA = _DATA.__get__, _DATA.__set__
_SETTING = ("aten.set.", "aten.set_.", "aten.set_data.")
_STRIDED_WRITE = "aten.as_strided_scatter.default"


def refusal(how: str) -> ConversionError:
    """Return the error for the running line of the user's code."""
    place = user_line(users_frame(sys._getframe(1)))
    return _refusal(place, how)


def _refusal(place: str, how: str) -> ConversionError:
    text = f"{place}: forward" if place else "forward"
    return ConversionError(
        f"cannot capture {text} replaces the memory of a tensor ({how}); write the values with copy_ instead",
        cause=Cause.MEMORY_REPLACED,
    )


def data_of(tensor: torch.Tensor, is_set: bool) -> torch.Tensor:
    """Return `t.detach()` for `t.data`, which torch.export can trace; refuse an assignment to it."""
    if is_set:
        raise refusal("`t.data = ...`")
    return tensor.detach()


def is_asked_by_a_model(frame: FrameType | None) -> bool:
    """Whether the caller, below other modes, is the user's code or a layer of torch, and not the tracer."""
    while frame is not None and frame.f_code.co_name == "__torch_function__":
        frame = frame.f_back
    if frame is None:
        return False
    return is_users_code(frame.f_code) or "/torch/nn/" in frame.f_code.co_filename.replace("\\", "/")


def refuse_set_memory(ir: IR) -> None:
    """Refuse a graph with a call of `set_`, which is not allowed in files."""
    for node in ir.all_nodes():
        if node.op_type.startswith(_SETTING):
            raise _refusal(node.origin.source, node.op_type)


def refuse_overlapping_writes(ir: IR) -> None:
    """Refuse a write through a view whose elements share memory."""
    for node in ir.all_nodes():
        if node.op_type == _STRIDED_WRITE and repeats_elements(node["size"], node["stride"]):
            place = f"{node.origin.source}: " if node.origin.source else ""
            raise ConversionError(
                f"cannot capture {place}forward writes through as_strided to elements that share memory, "
                "which has no defined result; write to a view without overlaps"
            )
