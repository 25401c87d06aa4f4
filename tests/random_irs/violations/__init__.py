"""One violation in a valid graph must be rejected with its rule and its path."""
