"""Shape rules for the most common operators on plain cpu tensors, tried before torch's own.

The first fake tensor of a process imports sympy and `torch._dynamo`, which takes longer than most captures and checked
loads, and so do torch's meta kernels in Python. These rules need neither: views have C++ kernels, and for the rest a
few lines compute shape, dtype and strides. A rule is valid for the tensors that it accepts; all others, and all errors,
are left to torch. Tests compare each rule with fake tensors, over dtypes, shapes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

import torch

from torch_ir.ops.torch_internals import DROPOUT_COPIES, DispatchKey, OpOverload, call_kernel

_CPU, _META = torch.device("cpu"), torch.device("meta")
_FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
_DTYPES = _FLOATS | {torch.int64, torch.int32, torch.bool}
_FLASH_ATTENTION = int(torch.nn.attention.SDPBackend.FLASH_ATTENTION.value)
_aten = torch.ops.aten
_Sizes = Sequence[int]


class _NoRuleError(Exception):
    """A call without a rule here."""


def call_on_meta(
    func: OpOverload, dtypes: Iterable[torch.dtype], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the result of a call on meta tensors of these dtypes, or raise: then use torch's rules."""
    rule = RULES.get(func)
    if rule is None or not _DTYPES.issuperset(dtypes):
        raise _NoRuleError
    return rule(*args, **kwargs)


def _require(condition: bool) -> None:
    if not condition:
        raise _NoRuleError


def _new(like: torch.Tensor, shape: _Sizes, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype or like.dtype, device=_META)


def _is_row_major(tensor: torch.Tensor) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _is_permuted(tensor: torch.Tensor) -> bool:
    """Whether a tensor without sizes 0 and 1 is a permuted row-major tensor."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride != expected or size < 2:
            return False
        expected *= size
    return True


def _row_major(*tensors: torch.Tensor | None) -> None:
    _require(all(tensor is None or _is_row_major(tensor) for tensor in tensors))


def _floats(*tensors: torch.Tensor | None) -> None:
    """Accept floating-point tensors of one dtype."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    _require(len(dtypes) == 1 and dtypes <= _FLOATS)


def _like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    if _is_row_major(tensor):
        return _new(tensor, tensor.shape, dtype)
    _require(_is_permuted(tensor))
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype or tensor.dtype, device=_META)


# -- element by element ----------------------------------------------------------------------------------------------


def _unary(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    _floats(tensor)
    return _like(tensor)


def _unary_in_place(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    _floats(tensor)
    _require(_is_row_major(tensor) or _is_permuted(tensor))  # no two elements share memory
    return tensor


def _binary(one: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    dtype = torch.result_type(one, other)
    _require(dtype != torch.bool and isinstance(alpha, int))
    return _broadcast(dtype, one, other)


def _quotient(one: torch.Tensor, other: Any) -> torch.Tensor:
    dtype = torch.result_type(one, other)
    _require(dtype in _FLOATS)
    return _broadcast(dtype, one, other)


def _comparison(one: torch.Tensor, other: Any) -> torch.Tensor:
    return _broadcast(torch.bool, one, other)


def _binary_in_place(one: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    made = _binary(one, other, alpha=alpha)
    _require(made.shape == one.shape and made.dtype == one.dtype and _is_row_major(one))
    return one


def _broadcast(dtype: torch.dtype, *operands: Any) -> torch.Tensor:
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if all(map(_is_row_major, tensors)):
        return _new(tensors[0], _broadcast_shape(*(tensor.shape for tensor in tensors)), dtype)
    layouts = {(tensor.shape, tensor.stride()) for tensor in tensors if tensor.dim()}
    _require(len(layouts) == 1)
    return _like(max(tensors, key=torch.Tensor.dim), dtype)


def _broadcast_shape(*shapes: _Sizes) -> list[int]:
    """Return the shape to which operands are expanded; torch's function imports sympy."""
    longest = max(map(len, shapes))
    padded = [(*([1] * (longest - len(shape))), *shape) for shape in shapes]
    found = [{*sizes} - {1} for sizes in zip(*padded, strict=True)]
    _require(all(len(sizes) < 2 for sizes in found))
    return [next(iter(sizes), 1) for sizes in found]


# -- layers ----------------------------------------------------------------------------------------------------------


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    _floats(input, weight, bias)
    _row_major(input, weight, bias)
    _require(input.dim() > 1 and weight.dim() == 2 and input.shape[-1] == weight.shape[1] and input.numel() > 0)
    _require(bias is None or bias.shape == weight.shape[:1])
    return _new(input, (*input.shape[:-1], weight.shape[0]))


def _convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: _Sizes = (1,),
    padding: _Sizes = (0,),
    dilation: _Sizes = (1,),
    groups: int = 1,
) -> torch.Tensor:
    _floats(input, weight, bias)
    _row_major(input, weight, bias)
    count = input.dim() - 2
    _require(weight.dim() == input.dim() and input.shape[1] == weight.shape[1] * groups)
    _require(weight.shape[0] % groups == 0 and (bias is None or bias.shape == weight.shape[:1]))
    options = [_each(option, count) for option in (stride, padding, dilation)]
    windows = zip(input.shape[2:], weight.shape[2:], *options, strict=True)
    sizes = [_windows(size, window, every, around, step) for size, window, every, around, step in windows]
    _require(min((*input.shape, *weight.shape)) > 0)
    return _new(input, (input.shape[0], weight.shape[0], *sizes))


def _each(option: _Sizes, count: int) -> list[int]:
    _require(len(option) in (1, count))
    return [*option] if len(option) == count else [*option] * count


def _windows(size: int, window: int, every: int, around: int, step: int = 1, is_ceil: bool = False) -> int:
    """Return the number of windows in a dimension."""
    _require(every > 0 and step > 0 and around >= 0 and window > 0)
    room = size + 2 * around - step * (window - 1) - 1
    count = room // every + 1
    if is_ceil and room % every and count * every < size + around:
        count += 1  # of windows that start inside, or in the padding before
    _require(room >= 0 and count > 0)
    return count


def _pool(
    input: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes = (),
    padding: _Sizes = (0,),
    dilation: _Sizes = (1,),
    ceil_mode: bool = False,
) -> torch.Tensor:
    _floats(input)
    _row_major(input)
    _require(input.dim() == 4 and min(input.shape) > 0)
    kernel, padding = _each(kernel_size, 2), _each(padding, 2)
    _require(all(2 * around <= window for around, window in zip(padding, kernel, strict=True)))
    options = (kernel, _each(stride, 2) if stride else kernel, padding, _each(dilation, 2))
    sizes = [_windows(*each, ceil_mode) for each in zip(input.shape[2:], *options, strict=True)]
    return _new(input, (*input.shape[:2], *sizes))


def _average_pool(
    input: torch.Tensor,
    kernel_size: _Sizes,
    stride: _Sizes = (),
    padding: _Sizes = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> torch.Tensor:
    _require(divisor_override is None)
    return _pool(input, kernel_size, stride, padding, (1,), ceil_mode)


def _adaptive_pool(input: torch.Tensor, output_size: _Sizes) -> torch.Tensor:
    _floats(input)
    _row_major(input)
    _require(input.dim() == 4 and min((*input.shape, *output_size)) > 0)
    return _new(input, (*input.shape[:2], *_each(output_size, 2)))


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    *_: Any,
) -> torch.Tensor:
    _require(not training and mean is not None and variance is not None and input.dim() > 1)
    _floats(input, weight, bias, mean, variance)
    _row_major(input)
    given = (weight, bias, mean, variance)
    _require(all(each is None or each.shape == input.shape[1:2] for each in given) and input.numel() > 0)
    return _new(input, input.shape)


def _layer_norm(
    input: torch.Tensor, shape: _Sizes, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *_: Any
) -> torch.Tensor:
    _floats(input, weight, bias)
    _row_major(input)
    _require(tuple(shape) == input.shape[-len(shape) :] and len(shape) > 0)
    _require(all(each is None or each.shape == tuple(shape) for each in (weight, bias)))
    return _new(input, input.shape)


def _group_norm(
    input: torch.Tensor, groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, *_: Any
) -> torch.Tensor:
    _floats(input, weight, bias)
    _row_major(input)
    _require(input.dim() > 2 and input.numel() > 0 and input.shape[1] % groups == 0)
    _require(all(each is None or each.shape == input.shape[1:2] for each in (weight, bias)))
    return _new(input, input.shape)


def _softmax(input: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    _floats(input)
    _row_major(input)
    _require(dtype is None and -input.dim() <= dim < input.dim())
    return _new(input, input.shape)


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    _require(not train)
    return input.clone() if DROPOUT_COPIES else input


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any) -> torch.Tensor:
    _row_major(weight, indices)
    _require(weight.dim() == 2 and not indices.is_floating_point() and indices.dtype != torch.bool)
    return _new(weight, (*indices.shape, weight.shape[1]))


def _gather(input: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> torch.Tensor:
    rank = input.dim()
    _require(index.dtype == torch.int64 and index.dim() == rank > 0 and -rank <= dim < rank and index.numel() > 0)
    _require(all(index.shape[each] <= input.shape[each] for each in range(rank) if each != dim % rank))
    return _new(input, index.shape)


def _matmul(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    _floats(one, other)
    _require(one.dim() == other.dim() > 1 and one.shape[:-2] == other.shape[:-2] and one.shape[-1] == other.shape[-2])
    _require(all(min(each.shape) > 1 and (_is_row_major(each) or _is_row_major(each.mT)) for each in (one, other)))
    return _new(one, (*one.shape[:-1], other.shape[-1]))


def _attention(
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
    """Attention by torch's fused cpu kernel, if torch chooses that one."""
    _floats(query, key, value)
    _require(query.dim() == 4 and query.shape[-1] == value.shape[-1])
    given, choice = (query, key, value, attn_mask, dropout_p, is_causal), _aten._fused_sdp_choice.default
    _require(call_kernel(choice, DispatchKey.CPU, *given, scale=scale, enable_gqa=enable_gqa) == _FLASH_ATTENTION)
    return _like(query)


# -- others ----------------------------------------------------------------------------------------------------------


def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    _row_major(*tensors)
    first = tensors[0]
    dim = dim + first.dim() if dim < 0 else dim
    rests = {(each.dtype, each.shape[:dim], each.shape[dim + 1 :], each.dim()) for each in tensors}
    _require(len(rests) == 1 and 0 <= dim < first.dim())
    length = sum(each.shape[dim] for each in tensors)
    return _new(first, (*first.shape[:dim], length, *first.shape[dim + 1 :]))


def _reshaped(func: OpOverload, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    """Return a view or a copy; fake tensors keep other strides for sizes of 1."""
    _require(_is_row_major(tensor) or _is_permuted(tensor))
    made: torch.Tensor = func(tensor, *args)
    return made


def _mean(input: torch.Tensor, dim: _Sizes | None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    _floats(input)
    _row_major(input)
    _require(dtype is None and bool(dim))
    reduced = {each + input.dim() if each < 0 else each for each in dim or ()}
    _require(len(reduced) == len(dim or ()) and all(0 <= each < input.dim() for each in reduced))
    kept = [
        (1 if index in reduced else size) for index, size in enumerate(input.shape) if keepdim or index not in reduced
    ]
    return _new(input, kept)


def _range(
    *ends: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    start, end, step = (0, *ends, 1) if len(ends) == 1 else (*ends, 1)[:3]
    _require(all(type(each) is int for each in (start, end, step)) and step > 0 and end >= start)
    _require(layout in (None, torch.strided) and device in (None, _CPU) and not pin_memory)
    _require(dtype is None or dtype in _DTYPES - {torch.bool})
    return torch.empty((ceil((end - start) / step),), dtype=dtype or torch.int64, device=_META)


_VIEWS = (
    _aten.alias.default, _aten.chunk.default, _aten.clone.default, _aten.contiguous.default, _aten.detach.default,
    _aten.expand.default, _aten.permute.default, _aten.select.int, _aten.slice.Tensor, _aten.split.Tensor,
    _aten.split_with_sizes.default, _aten.squeeze.dim, _aten.t.default, _aten.to.dtype, _aten.transpose.int,
    _aten.unbind.int, _aten.unsqueeze.default,
)  # fmt: skip
_RESHAPES = (_aten.flatten.using_ints, _aten.reshape.default, _aten.unflatten.int, _aten.view.default)
_UNARY = (
    _aten.abs.default, _aten.clamp.default, _aten.clamp_min.default, _aten.cos.default, _aten.elu.default,
    _aten.erf.default, _aten.exp.default, _aten.gelu.default, _aten.hardsigmoid.default, _aten.hardswish.default,
    _aten.hardtanh.default, _aten.leaky_relu.default, _aten.log.default, _aten.neg.default,
    _aten.pow.Tensor_Scalar, _aten.reciprocal.default, _aten.relu.default, _aten.rsqrt.default, _aten.sigmoid.default,
    _aten.silu.default, _aten.sin.default, _aten.softplus.default, _aten.sqrt.default, _aten.square.default,
    _aten.tanh.default,
)  # fmt: skip
_IN_PLACE = (
    _aten.hardsigmoid_.default, _aten.hardswish_.default, _aten.hardtanh_.default, _aten.leaky_relu_.default,
    _aten.relu_.default, _aten.sigmoid_.default, _aten.silu_.default,
)  # fmt: skip
_COMPARISONS = (
    *(_aten.eq.Scalar, _aten.ge.Scalar, _aten.gt.Scalar, _aten.le.Scalar, _aten.lt.Scalar, _aten.ne.Scalar),
    *(_aten.eq.Tensor, _aten.ge.Tensor, _aten.gt.Tensor, _aten.le.Tensor, _aten.lt.Tensor, _aten.ne.Tensor),
)
RULES: dict[OpOverload, Callable[..., Any]] = {
    **{func: func for func in _VIEWS},
    **{func: partial(_reshaped, func) for func in _RESHAPES},
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_IN_PLACE, _unary_in_place),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor), _binary),
    _aten.div.Tensor: _quotient,
    **dict.fromkeys((_aten.add_.Tensor, _aten.mul_.Tensor), _binary_in_place),
    _aten.linear.default: _linear,
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), _convolution),
    _aten.max_pool2d.default: _pool,
    _aten.avg_pool2d.default: _average_pool,
    _aten.adaptive_avg_pool2d.default: _adaptive_pool,
    _aten.batch_norm.default: _batch_norm,
    _aten.layer_norm.default: _layer_norm,
    _aten.group_norm.default: _group_norm,
    _aten.softmax.int: _softmax,
    _aten.dropout.default: _dropout,
    _aten.embedding.default: _embedding,
    _aten.gather.default: _gather,
    _aten.matmul.default: _matmul,
    _aten.scaled_dot_product_attention.default: _attention,
    _aten.cat.default: _cat,
    _aten.mean.dim: _mean,
    **dict.fromkeys((_aten.arange.default, _aten.arange.start, _aten.arange.start_step), _range),
}
