"""Near identities: results may differ in rounding, in the sign of zero, or by the kernel that reads them."""

from __future__ import annotations

from torch_ir.passes.clean import neutral_elements, transposes
from torch_ir.passes.pass_registry import rule_pass

near_identities = rule_pass(
    "near-identities",
    "Remove + 0.0, turn x * reciprocal(y) into x / y, and turn permutes that only move sizes of 1 into reshapes.",
    [*neutral_elements.NEAR, transposes.order_of_ones],
    may_raise=["peak"],
)
