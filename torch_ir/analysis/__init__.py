"""Ask graphs: what one costs, what it holds in memory, what depends on what, and in what two differ.

Nothing here changes a graph; torch is imported only where a question needs it.
"""

from torch_ir.analysis.cost import Cost, NodeCost, Work, cost
from torch_ir.analysis.cost_delta import CostDelta, cost_delta
from torch_ir.analysis.cost_report import CostReport, cost_report
from torch_ir.analysis.diff import Diff, diff
from torch_ir.analysis.kv_cache import KvCache, kv_cache
from torch_ir.analysis.liveness import Liveness, Step, liveness
from torch_ir.analysis.node_diff import NodeDiff
from torch_ir.analysis.order import topological_order
from torch_ir.analysis.prologue import split_prologue
from torch_ir.analysis.roofline import Roofline
from torch_ir.analysis.schedule import Schedule, schedule
from torch_ir.analysis.slices import ancestors, descendants, slice_between, subgraph

__all__ = [
    "Cost", "CostDelta", "CostReport", "Diff", "KvCache", "Liveness", "NodeCost", "NodeDiff", "Roofline", "Schedule",
    "Step", "Work", "ancestors", "cost", "cost_delta", "cost_report", "descendants", "diff", "kv_cache", "liveness",
    "schedule", "slice_between", "split_prologue", "subgraph", "topological_order",
]  # fmt: skip
