"""The command line: one file per verb; torch is imported only by the verbs that compute."""

from torch_ir.cli.dispatch import main

__all__ = ["main"]
