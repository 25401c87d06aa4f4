"""Graphs of hostile shapes, opened by every verb at growing sizes: how time and memory grow with the file."""
