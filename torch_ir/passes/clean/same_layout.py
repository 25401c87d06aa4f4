"""Interchangeable tensors: same dtype, shape, strides and placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_ir.analysis.cost_model.flop_formulas import FORMULAS
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.ir import Dim, Expr, TensorMeta, evaluate
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.sizes.expressions import names_in


def is_like(one: TensorMeta, other: TensorMeta) -> bool:
    """Whether two tensors agree in dtype, shape, strides and placement, so that no operator can distinguish them."""
    if one.dtype != other.dtype or one.placement != other.placement:
        return False
    return is_same_shape(one.shape, other.shape) and _lie_alike(one, other)


def is_same_shape(one: Sequence[Dim], other: Sequence[Dim]) -> bool:
    """Whether two shapes are equal; symbolic sizes are compared as expressions, not by sampling."""
    return one == other or (len(one) == len(other) and all(map(_is_same_size, one, other)))


def as_sizes(shape: Iterable[Dim]) -> list[Any]:
    """Return a shape as the argument of a call."""
    return [Expr(dim) if isinstance(dim, str) else dim for dim in shape]


def _is_same_size(one: Dim, other: Dim) -> bool:
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one == other or total([one]) == total([other])


def _lie_alike(one: TensorMeta, other: TensorMeta) -> bool:
    """Whether two tensors of the same shape have the same strides."""
    if one.stride == other.stride:
        return True
    written = {
        dim for tensor in (one, other) for dim in (*tensor.shape, *(tensor.stride or ())) if isinstance(dim, str)
    }
    # a stride such as "min(8, 8 * seq)" covers the empty tensor; where there are elements, it is 8
    names = sorted({name for dim in written for name in names_in(dim)})
    points = [{name: first + place for place, name in enumerate(names)} for first in (5, 16)]
    return all(_steps(one, sizes) == _steps(other, sizes) for sizes in points)


def _steps(tensor: TensorMeta, sizes: Mapping[str, int]) -> list[int]:
    """Return the strides at these sizes, without those of dimensions of size 1, which do not matter."""
    shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
    if tensor.stride is not None:
        strides = [int(evaluate(step, sizes)) for step in tensor.stride]
    else:
        strides = [1] * len(shape)
        for dim in reversed(range(len(shape) - 1)):
            strides[dim] = strides[dim + 1] * shape[dim + 1]
    return [step for size, step in zip(shape, strides, strict=True) if size != 1]


def is_contracted(tensor: TensorMeta) -> bool:
    """Whether a convolution or a matmul reads this; strides of dimensions of size 1 may select its kernel."""
    return any(base_name(reader.op_type) in FORMULAS for reader in tensor._uses)
