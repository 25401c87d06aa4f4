"""The documented door to reading weights, and to checking them against a graph."""

from torch_ir.errors import WeightLoadError
from torch_ir.run.weight_files import (
    load_weights,
    load_weights_pt,
    load_weights_safetensors,
    validate_weights_against_ir,
)

__all__ = [
    "WeightLoadError",
    "load_weights",
    "load_weights_pt",
    "load_weights_safetensors",
    "validate_weights_against_ir",
]
