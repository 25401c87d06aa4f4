"""Graphs as torch modules: ATen calls in an fx graph, weights under their keys."""
