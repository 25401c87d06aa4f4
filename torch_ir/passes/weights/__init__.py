"""What goes into weights: scales, shifts and padding of a layer, and layers that are merged."""

from torch_ir.passes.weights import (  # noqa: F401  # they register themselves
    fold_arithmetic,
    fold_batch_norm,
    fold_padding,
    linear,
    merge_projections,
)
