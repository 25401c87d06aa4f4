"""The tests; `python -m tests` checks the whole catalogue."""
