"""Make it compute: executor, weights, verification."""

from torch_ir.run.executor import IRExecutor, Outcome, execute_ir
from torch_ir.run.verify import VerificationReport, verify_ir, verify_ir_with_state_dict
from torch_ir.run.weights import (
    load_weights,
    load_weights_pt,
    load_weights_safetensors,
    random_weights,
    validate_weights_against_ir,
)

__all__ = [
    "IRExecutor", "Outcome", "VerificationReport", "execute_ir", "load_weights", "load_weights_pt",
    "load_weights_safetensors", "random_weights", "validate_weights_against_ir", "verify_ir",
    "verify_ir_with_state_dict",
]  # fmt: skip
