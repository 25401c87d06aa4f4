"""Regrouping of nodes: functions, levels of granularity, repeated blocks."""
