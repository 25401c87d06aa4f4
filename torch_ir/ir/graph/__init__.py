"""The graph: tensors, nodes, the IR, and what they are made of."""
