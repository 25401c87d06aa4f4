"""Random graphs that need not run but say whatever a graph can say, and what must hold of each."""
