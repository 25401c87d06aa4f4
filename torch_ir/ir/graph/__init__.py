"""The core data structures: tensors, nodes and the IR."""
