"""Shapes: inference by torch's rules, open sizes, strides."""
