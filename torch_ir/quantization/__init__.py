"""Quantisation as a graph transform: recipes, `quantize`, observed ranges, sensitivity of layers."""

from torch_ir.quantization.layer_sensitivity import LayerSensitivity, Movement, Sensitivity, movement, sensitivity
from torch_ir.quantization.measured_recipe import ChosenRecipe, choose_recipe
from torch_ir.quantization.observers import observe_ranges
from torch_ir.quantization.quantize_graph import quantize
from torch_ir.quantization.recipe import LayerRule, Recipe, Scheme
from torch_ir.quantization.report import QuantizationReport, QuantizedLayer

__all__ = [
    "ChosenRecipe", "LayerRule", "LayerSensitivity", "Movement", "QuantizationReport", "QuantizedLayer", "Recipe",
    "Scheme", "Sensitivity", "choose_recipe", "movement", "observe_ranges", "quantize", "sensitivity",
]  # fmt: skip
