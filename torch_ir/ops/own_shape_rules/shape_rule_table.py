"""The shape rule of each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from torch_ir.ops.own_shape_rules import (
    creation_shapes,
    layer_shapes,
    moved_shapes,
    pointwise_shapes,
    reduction_shapes,
    window_shapes,
)
from torch_ir.ops.own_shape_rules.accepted_tensors import DTYPES, NoRuleError
from torch_ir.ops.own_shape_rules.resized_shapes import pad, shuffled, upsampled, upsampled_by
from torch_ir.ops.torch_internals import OpOverload

_aten = torch.ops.aten
# On tensors without memory, their kernels in C++ need none of torch's rules in Python.
VIEWS = (
    _aten.alias.default, _aten.chunk.default, _aten.contiguous.default, _aten.detach.default,
    _aten.expand.default, _aten.expand_as.default, _aten.permute.default, _aten.select.int, _aten.slice.Tensor,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.squeeze.default, _aten.squeeze.dim, _aten.t.default,
    _aten.transpose.int, _aten.unbind.int, _aten.unsqueeze.default,
)  # fmt: skip
_UNARY = (
    _aten.acos.default, _aten.asin.default, _aten.atan.default,
    _aten.ceil.default, _aten.cos.default, _aten.erf.default, _aten.exp.default,
    _aten.expm1.default, _aten.floor.default, _aten.leaky_relu.default, _aten.log.default, _aten.log1p.default,
    _aten.mish.default, _aten.pow.Tensor_Scalar, _aten.reciprocal.default, _aten.relu.default, _aten.round.default,
    _aten.rsqrt.default, _aten.sigmoid.default, _aten.sign.default, _aten.silu.default, _aten.sin.default,
    _aten.softplus.default, _aten.sqrt.default, _aten.square.default, _aten.tanh.default,
)  # fmt: skip
_UNARY_IN_STEPS = (
    _aten.elu.default, _aten.gelu.default, _aten.hardsigmoid.default, _aten.hardswish.default, _aten.hardtanh.default,
    _aten.relu6.default,
)  # fmt: skip
_IN_PLACE = (
    _aten.hardsigmoid_.default, _aten.hardswish_.default, _aten.hardtanh_.default, _aten.leaky_relu_.default,
    _aten.clamp_.default, _aten.elu_.default, _aten.exp_.default, _aten.relu6_.default,
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
_LARGEST = (_aten.maximum.default, _aten.minimum.default, _aten.max.other, _aten.min.other)
_TRANSPOSED = (_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input)
_UPSAMPLED = {
    1: (_aten.upsample_linear1d, _aten.upsample_nearest1d, _aten._upsample_nearest_exact1d),
    2: (
        *(_aten.upsample_bilinear2d, _aten.upsample_bicubic2d),
        *(_aten.upsample_nearest2d, _aten._upsample_nearest_exact2d),
    ),
    3: (_aten.upsample_trilinear3d, _aten.upsample_nearest3d, _aten._upsample_nearest_exact3d),
}
_POOLS = (  # of one, two and three dimensions
    (window_shapes.pool, (_aten.max_pool1d, _aten.max_pool2d, _aten.max_pool3d)),
    (window_shapes.average_pool, (_aten.avg_pool1d, _aten.avg_pool2d)),
    (window_shapes.adaptive_pool, (_aten.adaptive_avg_pool1d, _aten.adaptive_avg_pool2d, _aten.adaptive_avg_pool3d)),
)
RULES: dict[OpOverload, Callable[..., Any]] = {
    **{func: func for func in VIEWS},
    # element by element
    **dict.fromkeys(_UNARY, pointwise_shapes.unary),
    **dict.fromkeys(_UNARY_IN_STEPS, pointwise_shapes.unary_in_steps),
    **dict.fromkeys(
        (_aten.clamp.default, _aten.clip.default, _aten.clamp_max.default, _aten.clamp_min.default),
        pointwise_shapes.clamped,
    ),
    **dict.fromkeys(_IN_PLACE, pointwise_shapes.unary_in_place),
    _aten.neg.default: pointwise_shapes.negation,
    _aten.abs.default: pointwise_shapes.magnitude,
    _aten.bitwise_not.default: pointwise_shapes.inversion,
    _aten.logical_not.default: pointwise_shapes.opposite,
    **dict.fromkeys(_COMPARISONS, pointwise_shapes.comparison),
    **dict.fromkeys((_aten.logical_and.default, _aten.logical_or.default), pointwise_shapes.logical),
    **dict.fromkeys(_BITWISE, pointwise_shapes.bitwise),
    **dict.fromkeys((_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor), pointwise_shapes.binary),
    _aten.rsub.Scalar: pointwise_shapes.reversed_difference,
    _aten.div.Tensor: pointwise_shapes.quotient,
    _aten.floor_divide.default: pointwise_shapes.whole_quotient,
    **dict.fromkeys(_LARGEST, pointwise_shapes.largest),
    **dict.fromkeys((_aten.add_.Tensor, _aten.mul_.Tensor, _aten.sub_.Tensor), pointwise_shapes.binary_in_place),
    _aten.div_.Tensor: pointwise_shapes.quotient_in_place,
    _aten.outer.default: pointwise_shapes.outer,
    **dict.fromkeys((_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf), pointwise_shapes.choice),
    **dict.fromkeys((_aten.masked_fill.Scalar, _aten.masked_fill.Tensor), pointwise_shapes.masked_fill),
    **dict.fromkeys((_aten.masked_fill_.Scalar, _aten.masked_fill_.Tensor), pointwise_shapes.masked_fill_in_place),
    # layers
    _aten.linear.default: layer_shapes.linear,
    _aten.matmul.default: layer_shapes.matmul,
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default), layer_shapes.batch_matmul),
    **dict.fromkeys((_aten.addmm.default, _aten.baddbmm.default), layer_shapes.add_matmul),
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), window_shapes.convolution),
    **dict.fromkeys(
        (_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding), window_shapes.padded_convolution
    ),
    **dict.fromkeys(_TRANSPOSED, window_shapes.transposed_convolution),
    **{each.default: partial(rule, count=count) for rule, pools in _POOLS for count, each in enumerate(pools, 1)},
    **{each.default: partial(upsampled, count=count) for count, packets in _UPSAMPLED.items() for each in packets},
    **{each.vec: partial(upsampled_by, count=count) for count, packets in _UPSAMPLED.items() for each in packets},
    _aten.pixel_shuffle.default: shuffled,
    _aten.pad.default: pad,
    _aten.batch_norm.default: layer_shapes.batch_norm,
    _aten.layer_norm.default: layer_shapes.layer_norm,
    _aten.group_norm.default: layer_shapes.group_norm,
    _aten.instance_norm.default: layer_shapes.instance_norm,
    _aten.softmax.int: layer_shapes.softmax,
    _aten.log_softmax.int: layer_shapes.log_softmax,
    _aten.prelu.default: layer_shapes.prelu,
    **dict.fromkeys(
        (_aten.mse_loss.default, _aten.l1_loss.default, _aten.smooth_l1_loss.default), layer_shapes.mean_loss
    ),
    **dict.fromkeys((_aten.cross_entropy_loss.default, _aten.nll_loss_nd.default), layer_shapes.class_loss),
    _aten.einsum.default: layer_shapes.einsum,
    _aten.dropout.default: layer_shapes.dropout,
    _aten.scaled_dot_product_attention.default: layer_shapes.attention,
    # over dimensions
    _aten.sum.dim_IntList: reduction_shapes.total,
    _aten.sum.default: reduction_shapes.whole_total,
    _aten.mean.dim: reduction_shapes.mean,
    _aten.mean.default: reduction_shapes.whole_mean,
    **dict.fromkeys((_aten.var.dim, _aten.std.dim), reduction_shapes.variance),
    **dict.fromkeys((_aten.amax.default, _aten.amin.default), reduction_shapes.extreme),
    **dict.fromkeys((_aten.max.dim, _aten.min.dim), reduction_shapes.extreme_with_place),
    _aten.linalg_vector_norm.default: reduction_shapes.norm,
    _aten.cumsum.default: reduction_shapes.running_total,
    **dict.fromkeys((_aten.argmax.default, _aten.argmin.default), reduction_shapes.place_of_largest),
    _aten.topk.default: reduction_shapes.largest_elements,
    _aten.sort.default: reduction_shapes.sorted_elements,
    # other sizes, and elements in other places
    _aten.view.default: moved_shapes.view,
    _aten.reshape.default: moved_shapes.reshape,
    _aten.reshape_as.default: moved_shapes.reshape_as,
    _aten.flatten.using_ints: moved_shapes.flatten,
    _aten.unflatten.int: moved_shapes.unflatten,
    _aten.detach_.default: moved_shapes.itself,
    _aten.clone.default: moved_shapes.clone,
    _aten.cat.default: moved_shapes.cat,
    _aten.stack.default: moved_shapes.stack,
    _aten.repeat.default: moved_shapes.repeat,
    _aten.repeat_interleave.self_int: moved_shapes.repeat_elements,
    _aten.embedding.default: moved_shapes.embedding,
    _aten.gather.default: moved_shapes.gather,
    _aten.index.Tensor: moved_shapes.index,
    _aten.index_select.default: moved_shapes.select_rows,
    _aten.index_put.default: moved_shapes.put_index,
    _aten.slice_scatter.default: moved_shapes.put_slice,
    _aten.select_scatter.default: moved_shapes.put_element,
    _aten.flip.default: moved_shapes.flip,
    **dict.fromkeys((_aten.tril.default, _aten.triu.default), moved_shapes.triangle),
    _aten.diff.default: moved_shapes.differences,
    _aten.broadcast_tensors.default: moved_shapes.expanded,
    _aten.lift_fresh_copy.default: moved_shapes.copied,
    # new tensors, and casts
    **dict.fromkeys((_aten.zeros.default, _aten.ones.default), creation_shapes.zeros),
    **dict.fromkeys((_aten.rand.default, _aten.randn.default), creation_shapes.random),
    _aten.full.default: creation_shapes.full,
    **dict.fromkeys(
        (_aten.new_zeros.default, _aten.new_ones.default, _aten.new_empty.default), creation_shapes.new_zeros
    ),
    _aten.new_full.default: creation_shapes.new_full,
    **dict.fromkeys(
        (_aten.zeros_like.default, _aten.ones_like.default, _aten.empty_like.default), creation_shapes.zeros_like
    ),
    _aten.full_like.default: creation_shapes.full_like,
    **dict.fromkeys((_aten.eye.default, _aten.eye.m), creation_shapes.identity),
    **dict.fromkeys((_aten.arange.default, _aten.arange.start, _aten.arange.start_step), creation_shapes.numbers),
    _aten.to.dtype: creation_shapes.to_dtype,
    _aten.to.device: creation_shapes.to_device,
    _aten.to.dtype_layout: creation_shapes.to_layout,
    _aten.type_as.default: creation_shapes.to_dtype_of,
    _aten._assert_tensor_metadata.default: creation_shapes.assertion,
}


def call_on_meta(
    func: OpOverload, dtypes: Iterable[torch.dtype], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the result of a call on meta tensors of these dtypes, or raise: then use torch's rules."""
    rule = RULES.get(func)
    if rule is None or not DTYPES.issuperset(dtypes):
        raise NoRuleError
    return rule(*args, **kwargs)
