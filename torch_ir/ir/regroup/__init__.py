"""The same graph in other groups: functions, levels of granularity, repeated blocks."""
