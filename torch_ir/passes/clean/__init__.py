"""Cleaning passes: remove no-ops, use one canonical form per computation, fold constants."""

from torch_ir.passes.clean import (  # noqa: F401  # they register themselves
    canonicalize,
    casts,
    common_subexpressions,
    dead_code,
    fold_constants,
    hoist_from_functions,
    hoist_prologue,
    identities,
    propagate_sizes,
    quantization,
    reshapes,
    transposes,
)
