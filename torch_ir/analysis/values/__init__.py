"""Values that are known: constants, what depends on weights alone, facts for rewriting."""
