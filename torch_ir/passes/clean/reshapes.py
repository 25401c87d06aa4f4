"""Reshapes: write view, flatten, squeeze and similar operators as `aten.reshape`, and merge chains of them.

`reshape` is the canonical form because, unlike `view`, it is valid for all strides. Sizes are explicit, without -1.
"""

from __future__ import annotations

from typing import Any

from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.passes.clean.same_layout import as_sizes, is_like
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import Builder, op, rule

RESHAPE = "aten.reshape.default"
_SPELLINGS = (
    RESHAPE,
    *(
        f"aten.{name}"
        for name in (
            "_reshape_alias.default", "_unsafe_view.default", "flatten.using_ints", "ravel.default",
            "reshape_as.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.default",
            "squeeze_copy.dim", "squeeze_copy.dims", "unflatten.int", "unsqueeze.default", "unsqueeze_copy.default",
            "view.default", "view_as.default", "view_copy.default",
        )
    ),
)  # fmt: skip
_COPIES = ("aten.clone.default", "aten.contiguous.default")


def _reshaped(g: Builder, node: OpNode, x: TensorMeta) -> TensorMeta | None:
    """Return `x` in the shape of the node's result, or None if the layout would differ."""
    if is_like(x, node.output):
        return x
    made: TensorMeta = g.op(RESHAPE, self=x, shape=as_sizes(node.output.shape))
    return made if is_like(made, node.output) else None


@rule(op(*_SPELLINGS, self=op(*_SPELLINGS, self="x").named("inner")))
def one_reshape(g: Builder, node: OpNode, inner: OpNode, x: TensorMeta) -> Any:
    """view(unsqueeze(x, 0), [6])  ->  reshape(x, [6]), or x itself if that is its shape"""
    if not is_view(inner) and len(inner.output.consumers) > 1:
        return "the first reshape copies, and another node reads the copy"
    return _reshaped(g, node, x)


@rule(op(*_SPELLINGS, self=op(*_COPIES, self="x").read_once()))
def copies_itself(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """view(contiguous(x), [6])  ->  reshape(x, [6]), which copies where it must"""
    return _reshaped(g, node, x)


@rule(op(*_SPELLINGS, self="x"))
def spelled_out(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """view(x, [2, -1]), flatten(x), squeeze(x), unsqueeze(x, 0)  ->  reshape(x, [2, 3])"""
    if node.op_type == RESHAPE and -1 not in node["shape"] and not is_like(x, node.output):
        return None
    return _reshaped(g, node, x)


reshapes = rule_pass(
    "reshapes",
    "Write views, flattens and squeezes as reshapes with explicit sizes, and merge chains of them.",
    [one_reshape, copies_itself, spelled_out],
    may_raise=["peak"],
)
