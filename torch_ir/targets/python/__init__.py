"""A graph as a Python file."""
