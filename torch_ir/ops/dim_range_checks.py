"""Dimension checks that torch's shape rules lack and its kernels have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# operator -> argument that has the dimensions, and arguments that index them
_UNSEEN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aten.softmax.int": ("self", ("dim",)),
    "aten._softmax.default": ("self", ("dim",)),
    "aten.special_softmax.default": ("self", ("dim",)),
    "aten.sort.default": ("self", ("dim",)),
    "aten.sort.stable": ("self", ("dim",)),
    "aten.argsort.default": ("self", ("dim",)),
    "aten.argsort.stable": ("self", ("dim",)),
    "aten.select_scatter.default": ("self", ("dim",)),
    "aten.slice_scatter.default": ("self", ("dim",)),
    "aten.slice_inverse.default": ("self", ("dim",)),
    "aten.diagonal_scatter.default": ("self", ("dim1", "dim2")),
    "aten.select_backward.default": ("input_sizes", ("dim",)),
    "aten.slice_backward.default": ("input_sizes", ("dim",)),
    "aten.diagonal_backward.default": ("input_sizes", ("dim1", "dim2")),
    "aten._weight_norm_interface.default": ("v", ("dim",)),
    "aten._weight_norm_interface_backward.default": ("saved_v", ("dim",)),
    "aten._gather_sparse_backward.default": ("self", ("dim",)),
}


def check_dims(op_type: str, arguments: Mapping[str, Any]) -> None:
    """Raise IndexError for a dimension out of range, as torch's kernels do."""
    whose, names = _UNSEEN.get(op_type, ("", ()))
    for name in names:
        held, dim = arguments[whose], arguments.get(name, 0)
        rank = max(1, len(getattr(held, "shape", held)))
        if not -rank <= dim < rank:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
            )
