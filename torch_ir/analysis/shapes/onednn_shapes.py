"""Shape rules for oneDNN operators for which torch has none.

A packed weight keeps the shape of the weight; its memory layout is private to oneDNN, and only operators that take
packed weights read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _packed(self: Tensor, **how: Any) -> Tensor:
    return self.new_empty(self.shape)


def _packed_transposed(self: Tensor, groups: int, **how: Any) -> Tensor:
    """Input and output channels are swapped, within each group."""
    reads, makes, *kernel = self.shape
    return self.new_empty(makes * groups, reads // groups, *kernel)


def _convolution_and(other: Tensor, **call: Any) -> Tensor:
    """A convolution, added to a tensor of its output shape."""
    same = {name: call[name] for name in ("X", "W", "B", "padding", "stride", "dilation", "groups")}
    made: Tensor = torch.ops.mkldnn._convolution_pointwise.default(**same, attr="none", scalars=[], algorithm="")
    if other.shape != made.shape:
        raise ValueError(f"the summand has shape {list(other.shape)}, expected {list(made.shape)}")
    return made


def _convolution_transposed(**call: Any) -> Tensor:
    batch, _, *places = call["X"].shape
    channels, _, *kernel = call["W"].shape
    geometry = [call[name] for name in ("padding", "output_padding", "stride", "dilation")]
    sizes = [
        (size - 1) * step - 2 * pad + far * (width - 1) + more + 1
        for size, width, pad, more, step, far in zip(places, kernel, *geometry, strict=True)
    ]
    made: Tensor = call["X"].new_empty(batch, channels, *sizes).to(memory_format=torch.channels_last)
    return made


RULES: dict[str, Callable[..., Tensor]] = {
    "mkldnn._reorder_convolution_weight.default": _packed,
    "mkldnn._reorder_convolution_transpose_weight.default": _packed_transposed,
    "mkldnn._reorder_linear_weight.default": _packed,
    "mkldnn._convolution_pointwise.binary": _convolution_and,
    "mkldnn._convolution_transpose_pointwise.default": _convolution_transposed,
}
