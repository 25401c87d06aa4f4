"""Completion scripts of shells, and the verb that prints them."""
