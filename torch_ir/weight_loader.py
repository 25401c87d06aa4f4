"""The documented door to checking weights against a graph."""

from torch_ir.run.weights import load_weights, load_weights_pt, load_weights_safetensors, validate_weights_against_ir

__all__ = ["load_weights", "load_weights_pt", "load_weights_safetensors", "validate_weights_against_ir"]
