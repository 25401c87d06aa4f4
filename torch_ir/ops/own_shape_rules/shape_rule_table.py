"""The shape rule of each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from torch_ir.ops.own_shape_rules import (
    creation_shapes,
    layer_shapes,
    moved_shapes,
    pointwise_shapes,
    reduction_shapes,
)
from torch_ir.ops.own_shape_rules.accepted_tensors import DTYPES, NoRuleError
from torch_ir.ops.torch_internals import OpOverload

_aten = torch.ops.aten
# On tensors without memory, their kernels in C++ need none of torch's rules in Python.
VIEWS = (
    _aten.alias.default, _aten.chunk.default, _aten.contiguous.default, _aten.detach.default,
    _aten.expand.default, _aten.expand_as.default, _aten.permute.default, _aten.select.int, _aten.slice.Tensor,
    _aten.split.Tensor, _aten.split_with_sizes.default, _aten.squeeze.dim, _aten.t.default,
    _aten.transpose.int, _aten.unbind.int, _aten.unsqueeze.default,
)  # fmt: skip
_UNARY = (
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
RULES: dict[OpOverload, Callable[..., Any]] = {
    **{func: func for func in VIEWS},
    # element by element
    **dict.fromkeys(_UNARY, pointwise_shapes.unary),
    **dict.fromkeys(_UNARY_IN_STEPS, pointwise_shapes.unary_in_steps),
    **dict.fromkeys((_aten.clamp.default, _aten.clamp_max.default, _aten.clamp_min.default), pointwise_shapes.clamped),
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
    **dict.fromkeys((_aten.add_.Tensor, _aten.mul_.Tensor), pointwise_shapes.binary_in_place),
    **dict.fromkeys((_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf), pointwise_shapes.choice),
    **dict.fromkeys((_aten.masked_fill.Scalar, _aten.masked_fill.Tensor), pointwise_shapes.masked_fill),
    # layers
    _aten.linear.default: layer_shapes.linear,
    _aten.matmul.default: layer_shapes.matmul,
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default), layer_shapes.batch_matmul),
    **dict.fromkeys((_aten.addmm.default, _aten.baddbmm.default), layer_shapes.add_matmul),
    **dict.fromkeys((_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default), layer_shapes.convolution),
    **dict.fromkeys(
        (_aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding), layer_shapes.padded_convolution
    ),
    _aten.max_pool2d.default: layer_shapes.pool,
    _aten.avg_pool2d.default: layer_shapes.average_pool,
    _aten.adaptive_avg_pool2d.default: layer_shapes.adaptive_pool,
    _aten.batch_norm.default: layer_shapes.batch_norm,
    _aten.layer_norm.default: layer_shapes.layer_norm,
    _aten.group_norm.default: layer_shapes.group_norm,
    _aten.softmax.int: layer_shapes.softmax,
    _aten.dropout.default: layer_shapes.dropout,
    _aten.scaled_dot_product_attention.default: layer_shapes.attention,
    # over dimensions
    _aten.sum.dim_IntList: reduction_shapes.total,
    _aten.sum.default: reduction_shapes.whole_total,
    _aten.mean.dim: reduction_shapes.mean,
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
    _aten.clone.default: moved_shapes.clone,
    _aten.cat.default: moved_shapes.cat,
    _aten.stack.default: moved_shapes.stack,
    _aten.repeat.default: moved_shapes.repeat,
    _aten.repeat_interleave.self_int: moved_shapes.repeat_elements,
    _aten.pad.default: moved_shapes.pad,
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
