"""The fast recording: one run on tensors without memory, with a memoised shape rule for each operator call."""
