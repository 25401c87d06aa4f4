"""Shape rules of operators that resize images: upsampling, pixel shuffles, padding."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import Sizes, filled, floats, new, require, row_major
from torch_ir.ops.own_shape_rules.moved_shapes import clone, may_be_channels_last
from torch_ir.ops.own_shape_rules.window_shapes import has_channels_last


def upsampled(input: torch.Tensor, output_size: Sizes, *_: Any, count: int) -> torch.Tensor:
    """The `default` overloads: channels that are the innermost dimension of the input are that of the result."""
    floats(input)
    require(len(output_size) == count == input.dim() - 2 and min((*input.shape, *output_size)) > 0)
    made = new((*input.shape[:2], *output_size), input.dtype)
    if has_channels_last(input):
        require(min(output_size) > 1)
        return made.to(memory_format=torch.channels_last)
    row_major(input)
    return made


def upsampled_by(input: torch.Tensor, output_size: Sizes | None, *options: Any, count: int) -> torch.Tensor:
    """The `vec` overloads: to sizes, or by the factors that are the last argument."""
    factors = options[-1]
    require((output_size is None) != (factors is None))
    if factors is not None:
        require(len(factors) == input.dim() - 2)
        output_size = [int(size * factor) for size, factor in zip(input.shape[2:], factors, strict=True)]
    return upsampled(input, output_size or (), count=count)


def shuffled(input: torch.Tensor, factor: int) -> torch.Tensor:
    """`pixel_shuffle`: channels become rows and columns."""
    require(input.dim() > 2 and factor > 0 and input.shape[-3] % factor**2 == 0)
    filled(input)
    row_major(input)
    *batch, channels, height, width = input.shape
    return new((*batch, channels // factor**2, height * factor, width * factor), input.dtype)


def pad(tensor: torch.Tensor, pad: Sizes, mode: str = "constant", value: float | None = None) -> torch.Tensor:
    """A tensor between constants, or between its own elements in the modes `reflect` and `replicate`."""
    count = len(pad) // 2
    require(len(pad) == 2 * count <= 2 * tensor.dim() and min(pad, default=0) >= 0)
    filled(tensor)
    if mode != "constant":
        require(mode in ("reflect", "replicate") and 0 < count < 4 and tensor.dim() - count in (1, 2))
        floats(tensor)
        row_major(tensor)
    elif not any(pad):
        return clone(tensor)
    sizes = list(tensor.shape)
    for place in range(count):
        before, after = pad[2 * place : 2 * place + 2]
        require(mode != "reflect" or max(before, after) < tensor.shape[-1 - place])
        sizes[-1 - place] += before + after
    require(not may_be_channels_last(tensor))
    return new(sizes, tensor.dtype)
