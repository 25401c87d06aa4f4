"""Shape rules of layers: products, convolutions, pooling, norms, attention."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import (
    FLOATS,
    Sizes,
    filled,
    floats,
    index_of,
    new,
    require,
    row_major,
)
from torch_ir.ops.own_shape_rules.pointwise_shapes import broadcast_shape, like
from torch_ir.ops.own_shape_rules.result_strides import is_row_major
from torch_ir.ops.torch_internals import DROPOUT_COPIES, DispatchKey, call_kernel

_FLASH_ATTENTION = int(torch.nn.attention.SDPBackend.FLASH_ATTENTION.value)
_MATH = int(torch.nn.attention.SDPBackend.MATH.value)
_aten = torch.ops.aten


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A product with a transposed weight."""
    floats(input, weight, bias)
    row_major(weight, bias)
    require(input.dim() > 0 and weight.dim() == 2 and input.shape[-1] == weight.shape[1])
    require(bias is None or bias.shape == weight.shape[:1])
    filled(input)
    return new((*input.shape[:-1], weight.shape[0]), input.dtype)


def matmul(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Products of matrices; what the batches have in common is broadcast."""
    floats(one, other)
    require(one.dim() > 1 and other.dim() > 1 and one.shape[-1] == other.shape[-2])
    filled(one, other)
    return new((*broadcast_shape(one.shape[:-2], other.shape[:-2]), one.shape[-2], other.shape[-1]), one.dtype)


def batch_matmul(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`mm` and `bmm`."""
    require(one.dim() == other.dim() and one.shape[:-2] == other.shape[:-2])
    return matmul(one, other)


def add_matmul(
    added: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """`addmm` and `baddbmm`."""
    floats(added, one, other)
    made = batch_matmul(one, other)
    require(list(made.shape) == broadcast_shape(made.shape, added.shape))
    return made


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
    floats(input, weight, bias)
    row_major(weight, bias)
    count = input.dim() - 2
    is_last = count == 2 and _has_channels_last(input)
    is_first = is_row_major(input) or (count > 1 and input.stride(1) > max(input.stride()[2:]))
    is_first |= count == 1 and min(input.shape[1:]) > 1
    require(is_last or is_first)
    require(weight.dim() == input.dim() and input.shape[1] == weight.shape[1] * groups)
    require(weight.shape[0] % groups == 0 and (bias is None or bias.shape == weight.shape[:1]))
    options = [_each(option, count) for option in (stride, padding, dilation)]
    windows = zip(input.shape[2:], weight.shape[2:], *options, strict=True)
    sizes = [_windows(size, window, every, around, step) for size, window, every, around, step in windows]
    require(min((*input.shape, *weight.shape)) > 0)
    made = new((input.shape[0], weight.shape[0], *sizes), input.dtype)
    return made.to(memory_format=torch.channels_last) if is_last else made


def _has_channels_last(tensor: torch.Tensor) -> bool:
    """Whether four dimensions are laid out with the channels innermost, and not row-major as well."""
    channels, height, width = tensor.shape[1:]
    strides = (channels * height * width, 1, width * channels, channels)
    return tensor.stride() == strides and min(channels, height, width) > 1


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
) -> torch.Tensor:
    """Maxima of windows."""
    floats(input)
    row_major(input)
    require(input.dim() == 4 and min(input.shape) > 0)
    kernel, padding = _each(kernel_size, 2), _each(padding, 2)
    require(all(2 * around <= window for around, window in zip(padding, kernel, strict=True)))
    options = (kernel, _each(stride, 2) if stride else kernel, padding, _each(dilation, 2))
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
) -> torch.Tensor:
    """Means of windows."""
    require(divisor_override is None)
    return pool(input, kernel_size, stride, padding, (1,), ceil_mode)


def adaptive_pool(input: torch.Tensor, output_size: Sizes) -> torch.Tensor:
    """Means of as many windows as the result has elements."""
    floats(input)
    row_major(input)
    require(input.dim() == 4 and min((*input.shape, *output_size)) > 0)
    return new((*input.shape[:2], *_each(output_size, 2)), input.dtype)


def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    *_: Any,
) -> torch.Tensor:
    """In evaluation, by running statistics."""
    require(not training and mean is not None and variance is not None and input.dim() > 1)
    floats(input, weight, bias, mean, variance)
    row_major(input)
    given = (weight, bias, mean, variance)
    require(all(each is None or each.shape == input.shape[1:2] for each in given) and input.numel() > 0)
    return new(input.shape, input.dtype)


def layer_norm(
    input: torch.Tensor, shape: Sizes, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *_: Any
) -> torch.Tensor:
    """Over the last dimensions; another order than row-major is copied."""
    floats(input, weight, bias)
    require(is_row_major(input) or not input.is_contiguous())
    row_major(weight, bias)
    filled(input)
    require(tuple(shape) == input.shape[-len(shape) :] and len(shape) > 0)
    require(all(each is None or each.shape == tuple(shape) for each in (weight, bias)))
    return new(input.shape, input.dtype)


def group_norm(
    input: torch.Tensor, groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *_: Any
) -> torch.Tensor:
    """Over groups of channels."""
    floats(input, weight, bias)
    row_major(input)
    require(input.dim() > 2 and input.numel() > 0 and input.shape[1] % groups == 0)
    require(all(each is None or each.shape == input.shape[1:2] for each in (weight, bias)))
    return new(input.shape, input.dtype)


def softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`softmax`, also of other numbers that are cast to floats."""
    require((dtype or input.dtype) in FLOATS)
    index_of(dim, input.dim())
    filled(input)
    return new(input.shape, dtype or input.dtype)


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout that is off."""
    require(not train)
    return input.clone() if DROPOUT_COPIES else input


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention by torch's fused cpu kernel, which keeps the strides of the query, or by products of matrices.

    Torch chooses the kernel by sizes, dtypes and strides. For tensors on cpu, the strides of the mask do not count.
    """
    floats(query, key, value)
    filled(query, key, value)  # torch divides by numbers of heads
    require(query.dim() == key.dim() == value.dim() == 4 and key.shape[:-1] == value.shape[:-1])
    require(query.shape[0] == key.shape[0] and query.shape[-1] == key.shape[-1] and 0 <= dropout_p <= 1)
    heads, groups = query.shape[1], key.shape[1]
    require(heads % groups == 0 if enable_gqa else heads == groups)
    mask = None
    if attn_mask is not None:
        require(attn_mask.dtype in (torch.bool, torch.float32, query.dtype) and not is_causal)
        scores = (*query.shape[:-1], key.shape[-2])
        require(broadcast_shape(attn_mask.shape, scores) == list(scores))
        mask = new(attn_mask.shape, attn_mask.dtype)
    given, choice = (query, key, value, mask, dropout_p, is_causal), _aten._fused_sdp_choice.default
    chosen = call_kernel(choice, DispatchKey.CPU, *given, scale=scale, enable_gqa=enable_gqa)
    require(chosen in (_FLASH_ATTENTION, _MATH))
    return like(query) if chosen == _FLASH_ATTENTION else new((*query.shape[:-1], value.shape[-1]), query.dtype)
