"""Quantisation as a graph transform: recipes, `quantize`, observed ranges, sensitivity of layers."""

from torch_ir.quantization.quantize_graph import quantize
from torch_ir.quantization.recipe import LayerRule, Recipe, Scheme
from torch_ir.quantization.report import QuantizationReport, QuantizedLayer

__all__ = ["LayerRule", "QuantizationReport", "QuantizedLayer", "Recipe", "Scheme", "quantize"]
