"""Symbolic sizes: symbols, expressions over them, and their specialisation to numbers."""
