"""The documented door to comparing a graph with its model."""

from torch_ir.verify import VerificationReport, verify_ir, verify_ir_with_state_dict

__all__ = ["VerificationReport", "verify_ir", "verify_ir_with_state_dict"]
