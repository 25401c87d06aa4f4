"""Measure the operators of this machine, or of its GPU, for predictions of the time of graphs."""

from torch_ir.calibration.measure_device import calibrate

__all__ = ["calibrate"]
