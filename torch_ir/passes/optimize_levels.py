"""The optimisation levels: which passes run, in which order.

`clean` is bit-exact. `basic` also folds arithmetic into weights, which changes rounding. `full` also merges linear
layers and fuses operators.
"""

from __future__ import annotations

CLEAN = (
    "dead-code",
    "common-subexpressions",
    "canonicalize",
    "propagate-sizes",
    "fold-constants",
    "casts",
    "quantization",
    "identities",
    "transposes",
    "reshapes",
    "hoist-from-functions",
    "hoist-prologue",
)
BASIC = (
    *CLEAN,
    "near-identities",
    "linear",
    "fold-padding",
    "fold-batch-norm",
    "fold-arithmetic",
    "activations",
    "layer-norms",
)
FULL = (
    *BASIC,
    "attention",
    "merge-projections",
    "fuse-norms",
    "fuse-rotary",
    "fuse-gates",
    "fuse-activations",
    "fuse-elementwise",
)
LEVELS = {"clean": CLEAN, "basic": BASIC, "full": FULL}
