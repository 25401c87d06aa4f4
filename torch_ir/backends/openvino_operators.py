"""Decompositions of operators that OpenVINO lacks or computes differently."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.export.decomp_utils import CustomDecompTable

from torch_ir.ops.torch_internals import OpOverload, decomposition_table
from torch_ir.targets.openvino_package import import_openvino
from torch_ir.targets.stablehlo.torch_rules import trilinear

_aten = torch.ops.aten
_DECOMPOSED: tuple[OpOverload, ...] = (
    _aten.slice_scatter.default,  # several in a row may overwrite each other's memory
    _aten.select_scatter.default,  # likewise
    _aten.index_add.default,
    _aten.linalg_vector_norm.default,
)


@cache
def decompositions() -> Any:
    """Return the decomposition table for OpenVINO."""
    module = import_openvino("openvino.frontend.pytorch.torchdynamo.export_decompositions")
    table: Any = CustomDecompTable()  # type: ignore[no-untyped-call]  # torch does not annotate it
    for operator in set(module.ops_to_not_decompose()).intersection(table.keys()):
        table.pop(operator)
    for operator in _DECOMPOSED:
        table[operator] = decomposition_table[operator]
    table[_aten._trilinear.default] = trilinear
    table[_aten.floor_divide.default] = _floor_divide
    table[_aten.div.Tensor_mode] = table[_aten.div.Scalar_mode] = _divide
    table[_aten.__rshift__.Scalar] = table[_aten.__rshift__.Tensor] = _shift_right
    return table


def _divide(left: Tensor, right: Any, *, rounding_mode: str | None) -> Any:
    return _floor_divide(left, right) if rounding_mode == "floor" else NotImplemented


def _floor_divide(left: Tensor, right: Any) -> Any:
    """Round integers down; OpenVINO rounds towards zero. It compares tensors, not sizes."""
    is_size = isinstance(right, torch.SymInt)
    right = torch.full((), right, dtype=left.dtype) if is_size else right
    whole = torch.div(left, right, rounding_mode="trunc")
    if whole.is_floating_point():
        return NotImplemented
    is_above = (left - whole * right != 0) & ((left < 0) != (right < 0))
    return whole - is_above.to(whole.dtype)


def _shift_right(left: Tensor, right: Any) -> Any:
    return _floor_divide(left, 2**right)
