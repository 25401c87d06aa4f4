"""Capture by recording one run of the model in ordinary Python."""
