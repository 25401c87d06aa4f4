"""Ask a graph: what it costs. Nothing here changes a graph, and nothing needs torch to be imported."""

from torch_ir.analysis.cost import Cost, NodeCost, Work, cost

__all__ = ["Cost", "NodeCost", "Work", "cost"]
