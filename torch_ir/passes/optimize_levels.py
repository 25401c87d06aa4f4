"""The levels: which passes run, in which order.

`clean` leaves every computed value as it is, to the last bit. `basic` also computes in a different order what rounds
differently then: weights are folded. `full` also merges products and calls fused operators.
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
