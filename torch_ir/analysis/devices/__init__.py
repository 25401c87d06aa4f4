"""Devices that times are estimated for: published figures, calibration files, and the model that predicts from them."""
