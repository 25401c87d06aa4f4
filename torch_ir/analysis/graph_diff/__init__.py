"""Two graphs: which nodes match, and how they differ."""
