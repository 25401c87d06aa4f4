"""Decomposition of operators into a chosen set."""

from torch_ir.passes.decompose import decompose_pass  # noqa: F401  # it registers itself
