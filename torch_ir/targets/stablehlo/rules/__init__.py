"""One rule for each operator of the core set."""

from torch_ir.targets.stablehlo.rules import (  # noqa: F401  # they register themselves
    convolution,
    creation,
    division,
    elementwise_rules,
    fourier,
    gathering,
    pooling,
    products,
    reductions,
    scattering,
    sorting,
    special_functions,
    views,
)  # fmt: skip
from torch_ir.targets.stablehlo.rules.rule_table import RULES

__all__ = ["RULES"]
