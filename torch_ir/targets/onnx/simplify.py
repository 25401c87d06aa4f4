"""Simplify an exported model exactly.

onnxscript's own `optimize` also applies rules with tolerances, under which `x + 1e-8` and `x * 1.000009` are `x`, rules
that are wrong for some constants, as of `relu(x.clamp(-2, -1))`, and rules that round, as the folding of batch norm.
"""

from __future__ import annotations

from typing import Any

import onnx_ir
from onnx_ir.passes import common as passes
from onnxscript.optimizer import fold_constants
from onnxscript.rewriter import RewritePass, RewriteRule, pattern
from onnxscript.rewriter.rules import common as rules

_RANDOM = frozenset(("Bernoulli", "Dropout"))  # which onnx-ir would merge
_EXACT = (  # of onnxscript, some only in later releases; they move values, or compute with sizes
    "no_op_cast_rule", "no_op_expand_rule", "no_op_transpose_rule", "transpose_transpose_rule",
    "unsqueeze_unsqueeze_rule", "squeeze_reshape_1d_rule", "reshape_reshape_rule", "materialize_reshape_shape_rule",
    "collapse_slice_rule", "collapse_slice2_rule", "cast_constant_of_shape_without_value_rule", "max_min_rule",
    "fuse_pad_into_conv_rule", "remove_optional_bias_from_conv_rule", "remove_optional_bias_from_conv_transpose_rule",
)  # fmt: skip


def simplify(model: onnx_ir.Model) -> None:
    """Inline functions, fold constants, and remove nodes that do nothing."""
    passes.InlinePass()(model)
    one = pattern.Constant(1, rel_tol=0, abs_tol=0)
    products = [lambda op, x: op.Mul(x, one), lambda op, x: op.Mul(one, x), lambda op, x: op.Div(x, one)]
    own = [*(RewriteRule(each, _same) for each in products), RewriteRule(_padded, _padded_by_axes, _may_be_fused)]
    rewrite = RewritePass([*own, *(getattr(rules, name) for name in _EXACT if hasattr(rules, name))])
    for _ in range(2):
        fold_constants(model, onnx_shape_inference=True)
        rewrite(model)
        passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.LiftSubgraphInitializersToMainGraphPass()(model)
    passes.DeduplicateInitializersPass()(model)
    if not any(node.op_type in _RANDOM for node in model.graph.all_nodes()):
        passes.CommonSubexpressionEliminationPass()(model)
    passes.OutputFixPass()(model)
    passes.NameFixPass()(model)


def _padded(op: Any, x: Any, pads: Any) -> Any:
    return op.Pad(x, pads, mode="constant", _allow_other_inputs=True, _outputs=["made"])


def _may_be_fused(context: Any, x: onnx_ir.Value, made: Any, **_: Any) -> bool:
    """Whether ONNX Runtime may fuse a padding into a pooling, which ignores zeros, and not into a convolution."""
    has_axes = len(made.producer().inputs) > 3
    return x.shape is not None and not has_axes and any(reader.op_type != "Conv" for reader in made.consumers())


def _padded_by_axes(op: Any, x: onnx_ir.Value, pads: Any, made: Any) -> Any:
    """Name all axes, for which ONNX Runtime has no fusion."""
    value = [*made.producer().inputs, None][2]
    return op.Pad(x, pads, value, op.Constant(value_ints=[*range(len(x.shape or ()))]), mode="constant")


def _same(op: Any, x: onnx_ir.Value) -> Any:
    return op.Identity(x)
