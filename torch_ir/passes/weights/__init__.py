"""Passes that fold scales, shifts and padding into layers, and merge layers."""

from torch_ir.passes.weights import (  # noqa: F401  # they register themselves
    fold_arithmetic,
    fold_batch_norm,
    fold_padding,
    linear,
    merge_projections,
)
