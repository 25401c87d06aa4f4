"""Graph passes, looked up by name, and the pipeline that applies, checks and reports them."""

from torch_ir.passes import clean, decompose, fuse, pack, weights  # noqa: F401  # their passes register themselves
from torch_ir.passes.decompose.named_opsets import LeftOperator, OpsetReport, to_opset
from torch_ir.passes.optimize_report import Report
from torch_ir.passes.pass_registry import Pass, apply_rules, find_pass, list_passes, named_pass, rule_pass
from torch_ir.passes.pipeline import optimize

__all__ = [
    "LeftOperator", "OpsetReport", "Pass", "Report", "apply_rules", "find_pass", "list_passes", "named_pass",
    "optimize", "rule_pass", "to_opset",
]  # fmt: skip
