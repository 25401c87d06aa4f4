"""A module whose globals pieces of models change."""

# mypy: ignore-errors

from types import SimpleNamespace

COUNT = 0
SEEN = []
STATE = SimpleNamespace(calls=0)


def next_count():
    global COUNT
    COUNT += 1
    return COUNT
