"""Graph invariants: one file per part, plus the rules, limits and JSON paths that errors use."""
