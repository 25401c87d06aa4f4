"""Graphs with one mistake in them: does `check`, the executor or the verifier notice each?"""
