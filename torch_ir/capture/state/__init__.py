"""State that forward reads or changes besides its inputs and weights, and process-wide settings."""
