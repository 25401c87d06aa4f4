"""Corrupted files: each is rejected with a typed error, or has the same meaning."""
