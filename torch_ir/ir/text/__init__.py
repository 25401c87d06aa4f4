"""The text form of a graph: printer and parser; numbers as text."""
