"""Shape rules of convolutions and pooling."""

from __future__ import annotations

from itertools import pairwise

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import Sizes, floats, new, require, row_major
from torch_ir.ops.own_shape_rules.result_strides import is_row_major


def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    groups: int = 1,
) -> torch.Tensor:
    """Windows; channels that are the innermost dimension of the input are that of the result."""
    if input.dim() == weight.dim() - 1:
        return convolution(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    require(weight.dim() == input.dim() and input.shape[1] == weight.shape[1] * groups)
    require(weight.shape[0] % groups == 0)
    options = [_each(option, input.dim() - 2) for option in (stride, padding, dilation)]
    windows = zip(input.shape[2:], weight.shape[2:], *options, strict=True)
    sizes = [_windows(size, window, every, around, step) for size, window, every, around, step in windows]
    return _convolved(input, weight, bias, weight.shape[0], sizes)


def _convolved(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, channels: int, sizes: Sizes
) -> torch.Tensor:
    floats(input, weight, bias)
    row_major(weight, bias)
    require(bias is None or list(bias.shape) == [channels])
    count = input.dim() - 2
    is_last = has_channels_last(input)
    is_first = is_row_major(input) or (count > 1 and input.stride(1) > input.stride(-1))
    is_first |= count == 1 and min(input.shape[1:]) > 1
    require((is_last or is_first) and min((*input.shape, *weight.shape)) > 0)
    made = new((input.shape[0], channels, *sizes), input.dtype)
    return made.to(memory_format=torch.channels_last) if is_last else made


def has_channels_last(tensor: torch.Tensor) -> bool:
    """Whether four dimensions are laid out with the channels innermost, and not row-major as well."""
    if tensor.dim() != 4 or min(tensor.shape[1:]) < 2 or tensor.stride(1) < 1:
        return False
    order = [(tensor.shape[dim], tensor.stride(dim)) for dim in (1, 3, 2, 0)]
    return all(step >= size * inner for (size, inner), (_, step) in pairwise(order))


def transposed_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sizes = (1,),
    padding: Sizes = (0,),
    output_padding: Sizes = (0,),
    groups: int = 1,
    dilation: Sizes = (1,),
) -> torch.Tensor:
    """Windows of the result, one for each element of the input."""
    if input.dim() == weight.dim() - 1:
        options = (stride, padding, output_padding, groups, dilation)
        return transposed_convolution(input.unsqueeze(0), weight, bias, *options).squeeze(0)
    require(weight.dim() == input.dim() and input.shape[1] == weight.shape[0] and groups > 0)
    require(weight.shape[0] % groups == 0)
    each = [_each(option, input.dim() - 2) for option in (stride, padding, output_padding, dilation)]
    sizes = []
    for size, window, every, around, more, step in zip(input.shape[2:], weight.shape[2:], *each, strict=True):
        require(every > 0 and step > 0 and around >= 0 and 0 <= more < max(every, step))
        sizes.append((size - 1) * every - 2 * around + step * (window - 1) + more + 1)
    require(min(sizes) > 0)
    return _convolved(input, weight, bias, weight.shape[1] * groups, sizes)


def padded_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sizes = (1,),
    padding: str = "valid",
    dilation: Sizes = (1,),
    groups: int = 1,
) -> torch.Tensor:
    """Without padding, or with as much as keeps the sizes."""
    require(input.dim() == weight.dim())
    made = convolution(input, weight, bias, stride, (0,), dilation, groups)
    if padding == "valid":
        return made
    require(padding == "same" and set(stride) == {1} and is_row_major(input))
    return new((*made.shape[:2], *input.shape[2:]), input.dtype)


def _each(option: Sizes, count: int) -> list[int]:
    require(len(option) in (1, count))
    return [*option] if len(option) == count else [*option] * count


def _windows(size: int, window: int, every: int, around: int, step: int = 1, is_ceil: bool = False) -> int:
    """Return the number of windows in a dimension."""
    require(every > 0 and step > 0 and around >= 0 and window > 0)
    room = size + 2 * around - step * (window - 1) - 1
    count = room // every + 1
    if is_ceil and room % every and count * every < size + around:
        count += 1  # of windows that start inside, or in the padding before
    require(room >= 0 and count > 0)
    return count


def pool(
    input: torch.Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    dilation: Sizes = (1,),
    ceil_mode: bool = False,
    *,
    count: int = 2,
) -> torch.Tensor:
    """Maxima of windows of so many dimensions."""
    floats(input)
    row_major(input)
    require(input.dim() == count + 2 and min(input.shape) > 0)
    kernel, padding = _each(kernel_size, count), _each(padding, count)
    require(all(2 * around <= window for around, window in zip(padding, kernel, strict=True)))
    options = (kernel, _each(stride, count) if stride else kernel, padding, _each(dilation, count))
    sizes = [_windows(*each, ceil_mode) for each in zip(input.shape[2:], *options, strict=True)]
    return new((*input.shape[:2], *sizes), input.dtype)


def average_pool(
    input: torch.Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    count: int = 2,
) -> torch.Tensor:
    """Means of windows."""
    require(divisor_override is None)
    return pool(input, kernel_size, stride, padding, (1,), ceil_mode, count=count)


def adaptive_pool(input: torch.Tensor, output_size: Sizes, *, count: int = 2) -> torch.Tensor:
    """Means of as many windows as the result has elements."""
    floats(input)
    row_major(input)
    require(input.dim() == count + 2 and min((*input.shape, *output_size)) > 0)
    return new((*input.shape[:2], *_each(output_size, count)), input.dtype)
