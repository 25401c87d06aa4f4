"""Plans: the best combination of tensor, sequence, context, expert, data and pipeline parallelism on a cluster."""

from torch_ir.planning.plan_file import Axis, Estimate, ParallelPlan, load_plan
from torch_ir.planning.plan_report import PlanReport
from torch_ir.planning.plan_search import find_plan
from torch_ir.planning.prices import Cluster

__all__ = ["Axis", "Cluster", "Estimate", "ParallelPlan", "PlanReport", "find_plan", "load_plan"]
