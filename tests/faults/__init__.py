"""Saves that are killed, starved, refused or disturbed leave the old file or the new one, and nothing else."""
