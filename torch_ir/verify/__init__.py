"""Verification: compare a graph with the original model, and find the first node that differs."""

from torch_ir.verify.block_report import BlockCheck, BlockReport
from torch_ir.verify.blockwise import verify_blocks
from torch_ir.verify.divergence import Divergence
from torch_ir.verify.verification import VerificationReport, verify_ir, verify_ir_with_state_dict

__all__ = [
    "BlockCheck", "BlockReport", "Divergence", "VerificationReport", "verify_blocks", "verify_ir",
    "verify_ir_with_state_dict",
]  # fmt: skip
