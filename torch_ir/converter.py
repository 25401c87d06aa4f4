"""The documented door to converting an exported program to a graph."""

from torch_ir.capture import convert_exported_program
from torch_ir.errors import ConversionError

__all__ = ["ConversionError", "convert_exported_program"]
