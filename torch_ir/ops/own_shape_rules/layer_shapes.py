"""Shape rules of layers: products, norms, losses, attention."""

from __future__ import annotations

from collections.abc import Sequence
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


def log_softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`log_softmax`."""
    row_major(input)
    return softmax(input, dim, dtype)


def instance_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    use_input_stats: bool,
    *_: Any,
) -> torch.Tensor:
    """Over the elements of each channel; running statistics are not updated."""
    require(all((each is None) == use_input_stats for each in (mean, variance)))
    floats(input, mean, variance)
    require(all(each is None or each.shape == input.shape[1:2] for each in (mean, variance)))
    return group_norm(input, 1, weight, bias)


def prelu(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One slope, or one for each channel."""
    floats(input, weight)
    row_major(input, weight)
    filled(input)
    require(input.dim() > 1 and weight.dim() == 1 and weight.shape[0] in (1, input.shape[1]))
    return new(input.shape, input.dtype)


def mean_loss(input: torch.Tensor, target: torch.Tensor, reduction: int = 1, *_: Any) -> torch.Tensor:
    """`mse_loss` and others, reduced to a number."""
    floats(input, target)
    filled(input, target)
    require(input.shape == target.shape and reduction in (1, 2))
    return new((), input.dtype)


def class_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`cross_entropy_loss` and `nll_loss_nd` of indices of classes, reduced to a number."""
    floats(input)
    filled(input)
    require(input.dim() > 1 and target.dtype == torch.int64 and weight is None and reduction in (1, 2))
    require(target.shape == (input.shape[0], *input.shape[2:]) and label_smoothing == 0.0)
    return new((), input.dtype)


def einsum(equation: str, tensors: Sequence[torch.Tensor], *, path: Any = None) -> torch.Tensor:
    """A product of batches of two tensors, permuted: its labels are the common ones, then those of each tensor.

    The second tensor comes first if all of its labels are before those of the first one in the output. Torch counts
    labels of size 1 to the second tensor.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    require(path is None and arrow == "->" and len(terms) == len(tensors) == 2)
    floats(*tensors)
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        require(len(set(term)) == len(term) == tensor.dim() and term.isascii() and term.isalpha())
        for label, size in zip(term, tensor.shape, strict=True):
            require(sizes.setdefault(label, size) == size > 0)
    one, other = ({label for label in term if sizes[label] > 1} for term in terms)
    summed = sizes.keys() - set(output)
    require(
        len(set(output)) == len(output) and sizes.keys() >= set(output) and len(summed) > 0 and summed <= one & other
    )
    groups = (one & other, one - other, {*output} - one)
    common, first, second = ([label for label in output if label in group] for group in groups)
    if first and second and output.index(second[-1]) < output.index(first[0]):
        first, second = second, first
    order = [*common, *first, *second]
    made = new([sizes[label] for label in order], tensors[0].dtype)
    return made.permute([order.index(label) for label in output])


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
