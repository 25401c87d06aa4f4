"""Memory: live tensors, aliasing, schedules, and bounds from declared sizes."""
