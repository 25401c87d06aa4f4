"""Sizes: symbols, expressions over them, and numbers in their place."""
