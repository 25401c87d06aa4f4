"""The text form of a graph: printer and parser; numbers and tables as text."""
