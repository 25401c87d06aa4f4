"""Graphs with one corruption each, which `check`, the executor or the verifier must detect."""
