"""Pictures of a graph: Mermaid text, Graphviz DOT, SVG and PNG. No torch here."""

from torch_ir.draw.mermaid import generate_op_distribution_pie, ir_to_mermaid
from torch_ir.draw.render import render

__all__ = ["generate_op_distribution_pie", "ir_to_mermaid", "render"]
