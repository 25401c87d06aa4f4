"""Which tensors a shape rule accepts, and the tensors that it returns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_ir.ops.own_shape_rules.result_strides import is_row_major

CPU, META = torch.device("cpu"), torch.device("meta")
FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
INTEGERS = frozenset((torch.int64, torch.int32))
DTYPES = FLOATS | INTEGERS | {torch.bool}
Sizes = Sequence[int]


class NoRuleError(Exception):
    """A call without a rule here."""


def require(condition: bool) -> None:
    """Leave a call to torch's rules unless the condition holds."""
    if not condition:
        raise NoRuleError


def row_major(*tensors: torch.Tensor | None) -> None:
    """Accept tensors in row-major order."""
    require(all(tensor is None or is_row_major(tensor) for tensor in tensors))


def floats(*tensors: torch.Tensor | None) -> None:
    """Accept floating-point tensors of one dtype."""
    dtypes = {tensor.dtype for tensor in tensors if tensor is not None}
    require(len(dtypes) == 1 and dtypes <= FLOATS)


def filled(*tensors: torch.Tensor) -> None:
    """Accept tensors with elements."""
    require(all(0 not in tensor.shape for tensor in tensors))


def index_of(dim: int, rank: int) -> int:
    """Return the index of a dimension, which may be counted from the end."""
    require(-rank <= dim < rank)
    return dim % rank


def new(shape: Sizes, dtype: torch.dtype, stride: Sizes | None = None) -> torch.Tensor:
    """Return a result; row-major unless strides are given."""
    if stride is None:
        return torch.empty(tuple(shape), dtype=dtype, device=META)
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=META)
