"""Drawings of a graph: Mermaid text, Graphviz DOT, SVG and PNG, and JSON for Model Explorer. No torch here."""

from torch_ir.draw.drawn_pairs import render_pair
from torch_ir.draw.mermaid import generate_op_distribution_pie, ir_to_mermaid
from torch_ir.draw.model_explorer import to_model_explorer
from torch_ir.draw.picture_files import render
from torch_ir.draw.plan_picture import memory_picture

__all__ = [
    "generate_op_distribution_pie",
    "ir_to_mermaid",
    "memory_picture",
    "render",
    "render_pair",
    "to_model_explorer",
]
