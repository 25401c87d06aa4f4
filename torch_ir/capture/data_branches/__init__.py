"""Models whose Python code branches on data: one run for each path, joined in one graph."""
