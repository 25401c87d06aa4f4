"""The shape rule of each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torch_ir.ops.own_shape_rules import creation, layers, pointwise, reductions, shaping
from torch_ir.ops.own_shape_rules.accepted import DTYPES, NoRuleError
from torch_ir.ops.torch_internals import OpOverload

_aten = torch.ops.aten
# On tensors without memory, their kernels in C++ need none of torch's rules in Python.
VIEWS = (
    _aten.alias.default, _aten.chunk.default, _aten.clone.default, _aten.contiguous.default, _aten.detach.default,
    _aten.expand.default, _aten.expand_as.default, _aten.permute.default, _aten.select.int, _aten.slice.Tensor,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.squeeze.dim, _aten.t.default, _aten.to.dtype,
    _aten.transpose.int, _aten.unbind.int, _aten.unsqueeze.default,
)  # fmt: skip
_UNARY = (
    _aten.abs.default, _aten.ceil.default, _aten.cos.default, _aten.erf.default, _aten.exp.default,
    _aten.expm1.default, _aten.floor.default, _aten.leaky_relu.default, _aten.log.default, _aten.log1p.default,
    _aten.mish.default, _aten.pow.Tensor_Scalar, _aten.reciprocal.default, _aten.relu.default, _aten.round.default,
    _aten.rsqrt.default, _aten.sigmoid.default, _aten.sign.default, _aten.silu.default, _aten.sin.default,
    _aten.softplus.default, _aten.sqrt.default, _aten.square.default, _aten.tanh.default,
)  # fmt: skip
_UNARY_IN_STEPS = (
    _aten.clamp.default, _aten.clamp_max.default, _aten.clamp_min.default, _aten.elu.default, _aten.gelu.default,
    _aten.hardsigmoid.default, _aten.hardswish.default, _aten.hardtanh.default, _aten.relu6.default,
)  # fmt: skip
_IN_PLACE = (
    _aten.hardsigmoid_.default, _aten.hardswish_.default, _aten.hardtanh_.default, _aten.leaky_relu_.default,
    _aten.relu_.default, _aten.sigmoid_.default, _aten.silu_.default,
)  # fmt: skip
_COMPARISONS = (
    *(_aten.eq.Scalar, _aten.ge.Scalar, _aten.gt.Scalar, _aten.le.Scalar, _aten.lt.Scalar, _aten.ne.Scalar),
    *(_aten.eq.Tensor, _aten.ge.Tensor, _aten.gt.Tensor, _aten.le.Tensor, _aten.lt.Tensor, _aten.ne.Tensor),
)
_BITWISE = (
    *(_aten.__and__.Tensor, _aten.__or__.Tensor, _aten.bitwise_and.Tensor, _aten.bitwise_or.Tensor),
    *(_aten.__and__.Scalar, _aten.__or__.Scalar, _aten.bitwise_and.Scalar, _aten.bitwise_or.Scalar),
)
RULES: dict[OpOverload, Callable[..., Any]] = {
    **{func: func for func in VIEWS},
    # element by element
    **dict.fromkeys(_UNARY, pointwise.unary),
    **dict.fromkeys(_UNARY_IN_STEPS, pointwise.unary_in_steps),
    **dict.fromkeys(_IN_PLACE, pointwise.unary_in_place),
    _aten.neg.default: pointwise.negation,
    _aten.bitwise_not.default: pointwise.inversion,
    _aten.logical_not.default: pointwise.truth,
    **dict.fromkeys(_COMPARISONS, pointwise.comparison),
    **dict.fromkeys((_aten.logical_and.default, _aten.logical_or.default), pointwise.comparison),
    **dict.fromkeys(_BITWISE, pointwise.bitwise),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor), pointwise.binary),
    _aten.rsub.Scalar: pointwise.reversed_difference,
    _aten.div.Tensor: pointwise.quotient,
    **dict.fromkeys((_aten.maximum.default, _aten.minimum.default), pointwise.largest),
    **dict.fromkeys((_aten.add_.Tensor, _aten.mul_.Tensor), pointwise.binary_in_place),
    **dict.fromkeys((_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf), pointwise.choice),
    **dict.fromkeys((_aten.masked_fill.Scalar, _aten.masked_fill.Tensor), pointwise.masked_fill),
    # layers
    _aten.linear.default: layers.linear,
    _aten.matmul.default: layers.matmul,
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default), layers.batch_matmul),
    **dict.fromkeys((_aten.addmm.default, _aten.baddbmm.default), layers.add_matmul),
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), layers.convolution),
    _aten.max_pool2d.default: layers.pool,
    _aten.avg_pool2d.default: layers.average_pool,
    _aten.adaptive_avg_pool2d.default: layers.adaptive_pool,
    _aten.batch_norm.default: layers.batch_norm,
    _aten.layer_norm.default: layers.layer_norm,
    _aten.group_norm.default: layers.group_norm,
    _aten.softmax.int: layers.softmax,
    _aten.dropout.default: layers.dropout,
    _aten.scaled_dot_product_attention.default: layers.attention,
    # over dimensions
    _aten.sum.dim_IntList: reductions.total,
    _aten.mean.dim: reductions.mean,
    _aten.cumsum.default: reductions.running_total,
    **dict.fromkeys((_aten.argmax.default, _aten.argmin.default), reductions.place_of_largest),
    _aten.topk.default: reductions.largest_elements,
    _aten.sort.default: reductions.sorted_elements,
    # other sizes, and elements in other places
    _aten.view.default: shaping.view,
    _aten.reshape.default: shaping.reshape,
    _aten.reshape_as.default: shaping.reshape_as,
    _aten.flatten.using_ints: shaping.flatten,
    _aten.unflatten.int: shaping.unflatten,
    _aten.cat.default: shaping.cat,
    _aten.stack.default: shaping.stack,
    _aten.repeat.default: shaping.repeat,
    _aten.repeat_interleave.self_int: shaping.repeat_elements,
    _aten.pad.default: shaping.pad,
    _aten.embedding.default: shaping.embedding,
    _aten.gather.default: shaping.gather,
    _aten.index.Tensor: shaping.index,
    _aten.index_select.default: shaping.select_rows,
    # new tensors, and casts
    **dict.fromkeys((_aten.zeros.default, _aten.ones.default), creation.zeros),
    _aten.full.default: creation.full,
    **dict.fromkeys((_aten.new_zeros.default, _aten.new_ones.default, _aten.new_empty.default), creation.new_zeros),
    _aten.new_full.default: creation.new_full,
    **dict.fromkeys((_aten.zeros_like.default, _aten.ones_like.default, _aten.empty_like.default), creation.zeros_like),
    _aten.full_like.default: creation.full_like,
    **dict.fromkeys((_aten.arange.default, _aten.arange.start, _aten.arange.start_step), creation.numbers),
    _aten.to.device: creation.to_device,
    _aten.to.dtype_layout: creation.to_layout,
    _aten.type_as.default: creation.to_dtype_of,
    _aten._assert_tensor_metadata.default: creation.assertion,
}


def call_on_meta(
    func: OpOverload, dtypes: Iterable[torch.dtype], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the result of a call on meta tensors of these dtypes, or raise: then use torch's rules."""
    rule = RULES.get(func)
    if rule is None or not DTYPES.issuperset(dtypes):
        raise NoRuleError
    return rule(*args, **kwargs)
