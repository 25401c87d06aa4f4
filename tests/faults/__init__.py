"""Saves that are killed, out of space, refused or disturbed leave the old file or the new one, and nothing else."""
