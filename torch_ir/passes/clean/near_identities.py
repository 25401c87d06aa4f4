"""What leaves values as they are but for rounding, the sign of a zero, or the kernel that computes what follows."""

from __future__ import annotations

from torch_ir.passes.clean import neutral_elements, transposes
from torch_ir.passes.pass_registry import rule_pass

near_identities = rule_pass(
    "near-identities",
    "Remove additions of 0.0, divide once rather than multiply with a reciprocal, reshape where only sizes of 1 move.",
    [*neutral_elements.NEAR, transposes.order_of_ones],
    may_raise=["peak"],
)
