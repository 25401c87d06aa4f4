"""Coverage-guided fuzzing: `make fuzz` runs every target for a while, and reports failures."""
