"""Diff of two graphs: node matching and differences."""
