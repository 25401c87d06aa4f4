"""Graphs as StableHLO text, with weights as arguments; no MLIR library is needed to write it."""
