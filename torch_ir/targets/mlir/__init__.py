"""The graph as MLIR: text of the torch dialect, weights outside, no MLIR library needed to write it."""
