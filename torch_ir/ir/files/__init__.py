"""Files: atomic writes, locks, side files, temporary folders, and what a file is that is not a graph."""
