"""StableHLO modules run with XLA, and compared with eager."""
