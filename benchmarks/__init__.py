"""Measurements: both sides in one process, interleaved, as ratios. `python -m benchmarks` prints every table."""
