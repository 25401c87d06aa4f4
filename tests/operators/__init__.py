"""PyTorch's own database of operators as models: extracted, saved, loaded, executed and compared."""
