"""Graphs as MLIR text in the torch dialect, with external weights; no MLIR library is needed to write it."""
