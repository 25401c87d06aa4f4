"""Adversarial graphs, opened by every command at growing sizes: growth of time and memory with the file."""
