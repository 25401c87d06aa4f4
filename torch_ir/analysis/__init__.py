"""Ask graphs: what one costs, and in what two differ. Nothing here changes one, or needs torch to be imported."""

from torch_ir.analysis.cost import Cost, NodeCost, Work, cost
from torch_ir.analysis.diff import Diff, diff

__all__ = ["Cost", "Diff", "NodeCost", "Work", "cost", "diff"]
