"""Benchmarks: both sides interleaved in one process, as ratios. `python -m benchmarks` prints the tables."""
