"""Capture by torch.export, without weights."""
