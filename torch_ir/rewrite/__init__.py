"""How to change a graph: patterns that find the nodes. No torch here."""

from torch_ir.rewrite.pattern import Match, Pattern, match, op

__all__ = ["Match", "Pattern", "match", "op"]
