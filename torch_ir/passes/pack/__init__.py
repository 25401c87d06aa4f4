"""What is laid out for oneDNN, the library behind torch on CPUs: weights once, in the order in which it reads them."""

from torch_ir.passes.pack import convolutions, linears, winograd  # noqa: F401  # they register themselves
