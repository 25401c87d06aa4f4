"""The shape rule of `aten._grouped_mm` for dtypes that its kernel for the CPU takes and torch's own rule refuses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NAME = "aten._grouped_mm.default"
_ALIGNMENT = 16  # bytes of a row of the result
_DTYPES = (torch.float32, torch.float16)


def grouped_rule(op_type: str, dtype: torch.dtype | None) -> Callable[..., Tensor] | None:
    """Return our rule for a call with a first operand of this dtype; None if torch's own applies."""
    return grouped_product if op_type == NAME and dtype in _DTYPES else None


def grouped_product(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return an empty result: rows of a product by group, or one product for each group."""
    if self.dim() not in (2, 3) or mat2.dim() not in (2, 3) or self.dtype != mat2.dtype or bias is not None:
        raise ValueError(f"_grouped_mm takes matrices of one dtype, not {self.dim()} and {mat2.dim()} dimensions")
    is_inner = self.dim() == mat2.dim() == 2  # groups of the dimension that is summed
    if self.shape[-1] != mat2.shape[-2]:
        raise ValueError(f"cannot multiply {list(self.shape)} by {list(mat2.shape)}")
    groups = {tensor.shape[0] for tensor in (self, mat2) if tensor.dim() == 3}
    if offs is not None:
        groups.add(offs.shape[0])
    if len(groups) != 1 or (offs is None) != (self.dim() == mat2.dim() == 3):
        raise ValueError(f"_grouped_mm takes one number of groups, not {sorted(groups)}")
    rows, columns = self.shape[-2], mat2.shape[-1]
    batch = [groups.pop()] if is_inner or self.dim() == mat2.dim() else []
    dtype = out_dtype or self.dtype
    step = _ALIGNMENT // dtype.itemsize
    padded = -(-columns // step) * step
    strides = [rows * padded, padded, 1][-len(batch) - 2 :]
    return torch.empty_strided((*batch, rows, columns), strides, dtype=dtype, device=self.device)
