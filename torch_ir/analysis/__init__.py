"""Analyses of graphs: cost, memory, dependencies, and differences between two graphs.

Nothing here changes a graph; torch is imported only by analyses that need it.
"""

from torch_ir.analysis.cost_model.cost_table import CostReport, cost_report
from torch_ir.analysis.cost_model.delta import CostDelta, cost_delta
from torch_ir.analysis.cost_model.links import Link
from torch_ir.analysis.cost_model.node_costs import Cost, NodeCost, Work, cost
from torch_ir.analysis.cost_model.roofline import Roofline
from torch_ir.analysis.cost_model.user_formulas import register_cost
from torch_ir.analysis.dependencies.order import topological_order
from torch_ir.analysis.dependencies.slices import ancestors, descendants, slice_between, subgraph
from torch_ir.analysis.devices.calibration import Calibration
from torch_ir.analysis.devices.device_file import load_device, save_device
from torch_ir.analysis.devices.find_device import find_device
from torch_ir.analysis.devices.run_modes import RunTime, run_time
from torch_ir.analysis.graph_diff.differ import Diff, diff
from torch_ir.analysis.graph_diff.node_diff import NodeDiff
from torch_ir.analysis.memory.kv_cache_report import KvCache, kv_cache
from torch_ir.analysis.memory.live_tensors import Liveness, Step, liveness
from torch_ir.analysis.memory.memory_schedule import Schedule, schedule
from torch_ir.analysis.memory_plan.plan_memory import memory_plan_of, plan_memory
from torch_ir.analysis.shapes.size_polynomials import product, total
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir.plans.check_plan import check_plan
from torch_ir.ir.plans.memory_plan import Bank, MemoryPlan

__all__ = [
    "Bank", "Calibration", "Cost", "CostDelta", "CostReport", "Diff", "KvCache", "Link", "Liveness", "MemoryPlan",
    "NodeCost", "NodeDiff", "Roofline", "RunTime", "Schedule", "Step", "Work", "ancestors", "check_plan", "cost",
    "cost_delta", "cost_report", "descendants", "diff", "find_device", "kv_cache", "liveness", "load_device",
    "memory_plan_of", "plan_memory", "product", "register_cost", "run_time", "save_device", "schedule", "slice_between",
    "split_prologue", "subgraph", "topological_order", "total",
]  # fmt: skip
