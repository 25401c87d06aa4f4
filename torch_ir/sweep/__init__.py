"""Sweeps over many models, each in its own process, with a row and a graph file each; locally or on a cluster."""

from torch_ir.sweep.case import Case
from torch_ir.sweep.engines import Engine, find_engine
from torch_ir.sweep.entry import Entry, read_entries
from torch_ir.sweep.job import STEPS, Allowance, Job, Outcome, Plan
from torch_ir.sweep.row import Row, Status
from torch_ir.sweep.run_sweep import sweep

__all__ = [
    "STEPS", "Allowance", "Case", "Engine", "Entry", "Job", "Outcome", "Plan", "Row", "Status", "find_engine",
    "read_entries", "sweep",
]  # fmt: skip
