"""Known values: constants, tensors that depend on weights alone, and the rewrite context."""
