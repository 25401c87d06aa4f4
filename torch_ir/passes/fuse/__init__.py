"""Fusion: attention, norms, activations, rotary embeddings, chains of element-wise operators."""

from torch_ir.passes.fuse import (  # noqa: F401  # they register themselves
    activations,
    attention,
    elementwise,
    fused_layers,
    norms,
    rotary,
)
