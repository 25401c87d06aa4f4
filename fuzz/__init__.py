"""Coverage-guided fuzzing: `make fuzz` runs every target for a while, and says what it found."""
