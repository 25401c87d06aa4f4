"""What is taken apart, one step at a time, down to the operators that are wanted."""

from torch_ir.passes.decompose import decompose_pass  # noqa: F401  # it registers itself
