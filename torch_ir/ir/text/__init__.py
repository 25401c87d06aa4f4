"""The text form of a graph: printed, and read back."""
