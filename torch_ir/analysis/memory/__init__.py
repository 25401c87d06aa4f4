"""Memory: which tensors are alive, share memory, or are bounded by a file's sizes."""
