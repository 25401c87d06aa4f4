"""Models whose Python decides on data: one run for each way, joined in one graph."""
