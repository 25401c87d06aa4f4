"""Weights packed once for oneDNN, torch's CPU library, in the layout its kernels read."""

from torch_ir.passes.pack import convolutions, linears, winograd  # noqa: F401  # they register themselves
