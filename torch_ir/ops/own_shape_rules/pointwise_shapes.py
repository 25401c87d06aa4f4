"""Shape rules of operators that compute element by element."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.ops.own_shape_rules.accepted_tensors import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Sizes,
    filled,
    floats,
    new,
    require,
    row_major,
)
from torch_ir.ops.own_shape_rules.result_strides import elementwise_stride, is_dense, is_ordered, is_row_major

_CAST = frozenset((torch.float16, torch.bfloat16))  # computed in float32


def like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor with the shape of another one, and its order of dimensions."""
    return new(tensor.shape, dtype or tensor.dtype, elementwise_stride(tensor))


def unary(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """One step, as in `exp`; half-precision numbers are cast before and after it."""
    floats(tensor)
    if tensor.dtype in _CAST:
        return unary_in_steps(tensor)
    return like(tensor)


def unary_in_steps(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Several steps, as in `gelu`: unless all of them find the same order, each may change the strides."""
    floats(tensor)
    return _in_steps(tensor)


def clamped(tensor: torch.Tensor, *bounds: Any) -> torch.Tensor:
    """`clamp` and others, by numbers of the kind of the elements."""
    require(
        tensor.dtype in FLOATS or (tensor.dtype in INTEGERS and not any(isinstance(each, float) for each in bounds))
    )
    require(any(each is not None for each in bounds))
    return _in_steps(tensor)


def _in_steps(tensor: torch.Tensor) -> torch.Tensor:
    require(is_dense(tensor) or is_row_major(tensor) or is_ordered(tensor))
    return like(tensor)


def unary_in_place(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """An element-wise write."""
    floats(tensor)
    require(is_row_major(tensor) or (is_dense(tensor) and 1 not in tensor.shape))  # no two elements share memory
    return tensor


def negation(tensor: torch.Tensor) -> torch.Tensor:
    """`neg`, also of integers."""
    require(tensor.dtype != torch.bool)
    return like(tensor)


def magnitude(tensor: torch.Tensor) -> torch.Tensor:
    """`abs`, also of integers."""
    return negation(tensor) if tensor.dtype in INTEGERS else unary(tensor)


def inversion(tensor: torch.Tensor) -> torch.Tensor:
    """`bitwise_not`."""
    require(tensor.dtype not in FLOATS)
    return like(tensor)


def opposite(tensor: torch.Tensor) -> torch.Tensor:
    """`logical_not`; other numbers are cast."""
    require(tensor.dtype == torch.bool or is_row_major(tensor))
    return like(tensor, torch.bool)


def logical(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`logical_and` and `logical_or`; other numbers are cast."""
    if not one.dtype == other.dtype == torch.bool:
        row_major(one, other)
    return broadcast(torch.bool, one, other)


def binary(one: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    """A sum, difference or product."""
    dtype = torch.result_type(one, other)
    require(dtype != torch.bool and (isinstance(alpha, int) or dtype in FLOATS))
    if alpha != 1:  # a step more
        row_major(one, *(each for each in [other] if isinstance(each, torch.Tensor)))
    return broadcast(dtype, one, other)


def reversed_difference(one: torch.Tensor, other: Any, alpha: Any = 1) -> torch.Tensor:
    """`rsub`."""
    require(not isinstance(other, bool) and one.dtype != torch.bool)
    return binary(one, other, alpha=alpha)


def quotient(one: torch.Tensor, other: Any) -> torch.Tensor:
    """A quotient, which is a floating-point number."""
    dtype = torch.result_type(one, other)
    if dtype not in FLOATS:
        row_major(one, *(each for each in [other] if isinstance(each, torch.Tensor)))
        dtype = torch.get_default_dtype()
    return broadcast(dtype, one, other)


def whole_quotient(one: torch.Tensor, other: Any) -> torch.Tensor:
    """`floor_divide` of integers."""
    dtype = torch.result_type(one, other)
    require(dtype in INTEGERS and (isinstance(other, torch.Tensor) or other != 0))
    row_major(one, *(each for each in [other] if isinstance(each, torch.Tensor)))
    return broadcast(dtype, one, other)


def comparison(one: torch.Tensor, other: Any) -> torch.Tensor:
    """`lt`, `eq` and others."""
    return broadcast(torch.bool, one, other)


def bitwise(one: torch.Tensor, other: Any) -> torch.Tensor:
    """`&` and `|`."""
    dtype = torch.result_type(one, other)
    require(dtype == torch.bool or dtype in INTEGERS)
    return broadcast(dtype, one, other)


def largest(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`maximum` and `minimum`."""
    return broadcast(torch.result_type(one, other), one, other)


def binary_in_place(one: torch.Tensor, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    """A sum or product that is written to the first operand."""
    return _written(one, binary(one, other, alpha=alpha))


def quotient_in_place(one: torch.Tensor, other: Any) -> torch.Tensor:
    """A quotient that is written to the first operand."""
    return _written(one, quotient(one, other))


def masked_fill_in_place(tensor: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """`masked_fill_`."""
    return _written(tensor, masked_fill(tensor, mask, value))


def _written(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    require(made.shape == tensor.shape and made.dtype == tensor.dtype and is_row_major(tensor))
    return tensor


def outer(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """All products of the elements of two tensors."""
    require(one.dim() == other.dim() == 1)
    return binary(one.unsqueeze(1), other)


def choice(condition: torch.Tensor, one: Any = None, other: Any = None) -> torch.Tensor:
    """`where`, of tensors and numbers."""
    require(condition.dtype == torch.bool and one is not None and other is not None)
    dtype = torch.result_type(one, other)
    require(dtype in DTYPES)
    return _selected(dtype, condition, one, other)


def masked_fill(tensor: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """`masked_fill` with a number, or with a tensor of one element: a selection, copied to row-major order."""
    require(mask.dtype == torch.bool and (not isinstance(value, torch.Tensor) or value.dim() == 0))
    require(torch.result_type(tensor, value) == tensor.dtype)
    values = (value, tensor) if isinstance(value, torch.Tensor) else (tensor,)
    made = _selected(tensor.dtype, mask, *values)
    require(made.shape == tensor.shape)
    return made.contiguous()


def _selected(dtype: torch.dtype, condition: torch.Tensor, *values: Any) -> torch.Tensor:
    """Return elements of tensors; numbers are expanded to tensors, and nothing is computed."""
    tensors = [value if isinstance(value, torch.Tensor) else new((), dtype) for value in values]
    shape = broadcast_shape(condition.shape, *(tensor.shape for tensor in tensors))
    if is_row_major(condition) and all(map(is_row_major, tensors)):
        return new(shape, dtype)
    require(all(tensor.dtype == dtype or tensor.dim() == 0 for tensor in tensors))
    return new(shape, dtype, elementwise_stride(*(tensor.expand(shape) for tensor in (condition, *tensors))))


def broadcast(dtype: torch.dtype, *operands: Any) -> torch.Tensor:
    """Return the result of row-major tensors and numbers, or of tensors of one dtype."""
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    shape = broadcast_shape(*(tensor.shape for tensor in tensors))
    if all(map(is_row_major, tensors)):
        return new(shape, dtype)
    common = tensors[0].dtype
    require(all(torch.result_type(tensors[0], operand) == common for operand in operands))
    require(all(tensor.dtype == common for tensor in tensors))  # casts change the strides of operands
    given = [tensor for tensor in tensors if tensor.dim()]
    if common in _CAST:
        filled(*given)
        given = [tensor if is_dense(tensor) else like(tensor) for tensor in given]
    return new(shape, dtype, elementwise_stride(*(tensor.expand(shape) for tensor in given)))


def broadcast_shape(*shapes: Sizes) -> list[int]:
    """Return the shape to which operands are expanded; torch's function imports sympy."""
    longest = max(map(len, shapes))
    padded = [(*([1] * (longest - len(shape))), *shape) for shape in shapes]
    found = [{*sizes} - {1} for sizes in zip(*padded, strict=True)]
    require(all(len(sizes) < 2 for sizes in found))
    return [next(iter(sizes), 1) for sizes in found]
