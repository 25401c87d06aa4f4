"""The documented door to drawing graphs as Mermaid text."""

from torch_ir.draw import generate_op_distribution_pie, ir_to_mermaid

__all__ = ["generate_op_distribution_pie", "ir_to_mermaid"]
