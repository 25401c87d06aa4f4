"""Torch's operator database as models: extracted, saved, loaded, executed and compared."""
