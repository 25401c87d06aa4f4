"""What is recognised as one operator: attention, norms, activations, rotations, chains of element-wise operators."""

from torch_ir.passes.fuse import (  # noqa: F401  # they register themselves
    activations,
    attention,
    elementwise,
    layers,
    norms,
    rotary,
)
