"""Operators with their own kernels on a GPU, for a step that makes one token."""
