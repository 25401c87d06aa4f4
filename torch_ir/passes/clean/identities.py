"""Identities: calls that return their input unchanged, or nearly so."""

from __future__ import annotations

from typing import Any

from torch_ir.analysis.memory.aliasing import memory_of
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import DROPOUTS
from torch_ir.ops.effects import gives_its_input
from torch_ir.passes.clean import neutral_elements, repeated_operators, transposes
from torch_ir.passes.clean.reshapes import RESHAPE
from torch_ir.passes.clean.same_layout import as_sizes, is_like
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import Builder, op, rule

# If the result has the shape of the input, it is the input.
_SAME_IF_SHAPE_STAYS = tuple(
    f"aten.{name}"
    for name in (
        "alias.default", "amax.default", "amin.default", "broadcast_to.default", "detach.default", "expand.default",
        "expand_as.default", "lift_fresh.default", "narrow.default", "positive.default", "repeat.default",
        "resolve_neg.default", "slice.Tensor", "tile.default",
    )
)  # fmt: skip
_COPIES = tuple(
    f"aten.{name}.default" for name in ("clone", "contiguous", "lift", "lift_fresh_copy", "expand_copy", "alias_copy")
)
_SPLITS = tuple(
    f"aten.{name}"
    for name in (
        "chunk.default", "split.Tensor", "split.sizes", "split_with_sizes.default", "tensor_split.indices",
        "tensor_split.sections", "unsafe_chunk.default", "unsafe_split.Tensor", "unsafe_split_with_sizes.default",
    )
)  # fmt: skip


def _unless_changed(node: OpNode, x: TensorMeta) -> TensorMeta | None:
    """Return `x` if no operator can tell the node's result from it."""
    return x if is_like(x, node.output) else None


@rule(op(*_SAME_IF_SHAPE_STAYS))
def nothing_changes(g: Builder, node: OpNode) -> Any:
    """alias(x), slice(x, 0, size of x), expand(x, shape of x)  ->  x"""
    return _unless_changed(node, node.inputs[0])


@rule(op(*_COPIES))
def needless_copy(g: Builder, node: OpNode) -> Any:
    """clone(x), contiguous(x)  ->  x, where x has the layout of the copy"""
    x = node.inputs[0]
    if not is_like(x, node.output):
        return None
    found = memory_of(x)
    if found is None or any(memory.producer is None and memory.param is None for memory in found):
        return "it copies an input, which a caller may pass with other strides"
    return x


@rule(op(*DROPOUTS))
def idle_dropout(g: Builder, node: OpNode) -> Any:
    """dropout(x, p, train=False), dropout(x, 0.0)  ->  x"""
    return node["input"] if gives_its_input(node.op_type, node.attrs) else "it drops elements (training mode)"


@rule(op("aten.native_dropout.default", input="x", train=False))
def idle_dropout_without_mask(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """native_dropout(x, p, train=False)  ->  x, if its mask is unused"""
    return "its mask is read" if node.outputs[1].consumers else (x, None)


@rule(op("aten.pad.default", "aten.constant_pad_nd.default", self="x", pad="pad"))
def no_padding(g: Builder, node: OpNode, x: TensorMeta, pad: list[Any]) -> Any:
    """pad(x, [0, 0])  ->  x"""
    return None if any(pad) else _unless_changed(node, x)


@rule(op("aten.cat.default"))
def one_part(g: Builder, node: OpNode) -> Any:
    """cat([x])  ->  x"""
    return _unless_changed(node, node.inputs[0]) if len(node.inputs) == 1 else None


@rule(op(*_SPLITS))
def one_piece(g: Builder, node: OpNode) -> Any:
    """split(x, size of x)  ->  x"""
    return _unless_changed(node, node.inputs[0]) if len(node.outputs) == 1 else None


@rule(op("aten.stack.default"), op("aten.unbind.int"))
def only_one(g: Builder, node: OpNode) -> Any:
    """stack([x])  ->  reshape(x);  [y] = unbind(x)  ->  y = reshape(x)"""
    if len(node.inputs) != 1 or len(node.outputs) != 1:
        return None
    return g.op(RESHAPE, self=node.inputs[0], shape=as_sizes(node.output.shape))


identities = rule_pass(
    "identities",
    "Remove no-ops: dropout in inference, whole slices, needless copies, x * 1.",
    [
        nothing_changes,
        needless_copy,
        idle_dropout,
        idle_dropout_without_mask,
        no_padding,
        one_part,
        one_piece,
        only_one,
        *neutral_elements.EXACT,
        *repeated_operators.EXACT,
    ],
    may_raise=["peak"],  # without the copy, the whole tensor it was taken from stays alive
)
# Results may differ in rounding, in the sign of zero, or by the kernel that reads them.
near_identities = rule_pass(
    "near-identities",
    "Remove + 0.0, turn x * reciprocal(y) into x / y, and turn permutes that only move sizes of 1 into reshapes.",
    [*neutral_elements.NEAR, transposes.order_of_ones],
    may_raise=["peak"],
)
