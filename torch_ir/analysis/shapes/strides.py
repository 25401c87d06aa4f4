"""Propagate a change of strides: how tensors computed from one would be laid out in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import ShapeError
from torch_ir.ir import Dim, OpNode, TensorMeta

Stride = tuple[Dim, ...] | None


def moved_by(
    shapes: Shapes,
    tensor: TensorMeta,
    stride: Sequence[Dim] | None,
    objection: Callable[[OpNode], str] = lambda reader: "",
) -> dict[TensorMeta, Stride]:
    """Return the tensors that would have other strides if this one had these, with their strides; nothing is changed.

    Raise ShapeError if a reader does not accept such strides, as a `view` may not, or if `objection`, called for each
    reader with these strides, returns a reason.
    """
    before: dict[TensorMeta, Stride] = {tensor: tensor.stride}
    tensor.stride = None if stride is None else tuple(stride)
    left = [tensor]
    try:
        while left:
            for reader in tuple(left.pop()._uses):
                for seen, now in zip(reader.outputs, shapes.of(reader) or reader.outputs, strict=True):
                    if seen.stride != now.stride:
                        before.setdefault(seen, seen.stride)
                        seen.stride = now.stride
                        left.append(seen)
                if why := objection(reader):
                    raise ShapeError(why)
        return {moved: moved.stride for moved in before}
    finally:
        for moved, old in before.items():
            moved.stride = old
