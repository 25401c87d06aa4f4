"""Operators with kernels for a CPU, and the rewrites that use them."""
