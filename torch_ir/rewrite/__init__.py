"""Rewriting: patterns, rules, the builder of new nodes, and the driver that applies rules."""

from torch_ir.rewrite.builder import CUTS, REORDERS, SPREADS, Builder
from torch_ir.rewrite.change_log import Journal, journal
from torch_ir.rewrite.driver import rewrite
from torch_ir.rewrite.pattern import Match, Pattern, match, op
from torch_ir.rewrite.rewrite_rule import Rule, rule

__all__ = [
    "CUTS", "REORDERS", "SPREADS", "Builder", "Journal", "Match", "Pattern", "Rule", "journal", "match", "op",
    "rewrite", "rule",
]  # fmt: skip
