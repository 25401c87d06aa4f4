"""Fuse rotary position embeddings: `fused.rotary(input=x, cos=cos, sin=sin)`."""

from __future__ import annotations

from typing import Any

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.passes.fuse.fused_calls import Group, fuse
from torch_ir.passes.fuse.match_variants import between, maker, orders
from torch_ir.passes.pass_registry import named_pass


@named_pass("fuse-rotary", fuses=True, may_raise=["peak"])
def fuse_rotary(ir: IR) -> int:
    """Fuse each rotation of the two halves of a tensor, in either form; `a, b` are the halves of x.

    before   x * cos + cat([-b, a]) * sin          cat([a * cos - b * sin, b * cos + a * sin])
    after    fused.rotary(input=x, cos=cos, sin=sin)
    """
    return fuse(ir, [_rotated, _rotated_by_halves])


def _rotated(node: OpNode) -> Group | None:
    """x * cos + cat([-b, a]) * sin"""
    if base_name(node.op_type) != "aten.add":
        return None
    for straight, turned in orders(node):
        for x, cos in orders(maker(straight, "aten.mul")):
            for swapped, sin in orders(maker(turned, "aten.mul")):
                if _is_swapped(swapped, x) and isinstance(cos, TensorMeta) and isinstance(sin, TensorMeta):
                    return _group(node, x, cos, sin)
    return None


def _is_swapped(tensor: Any, x: Any) -> bool:
    """Whether this is cat([-b, a]) of the halves a and b of x."""
    parts = _joined(tensor)
    if len(parts) != 2 or (negated := maker(parts[0], "aten.neg")) is None or not isinstance(x, TensorMeta):
        return False
    return _half_of(parts[1]) == (x, 0) and _half_of(negated["self"]) == (x, 1)


def _rotated_by_halves(node: OpNode) -> Group | None:
    """cat([a * cos - b * sin, b * cos + a * sin])"""
    parts = _joined(node.outputs[0]) if node.outputs else []
    if len(parts) != 2 or (difference := maker(parts[0], "aten.sub")) is None:
        return None
    if difference.attrs.get("alpha", 1) != 1:
        return None
    for first, cos in orders(maker(difference["self"], "aten.mul")):
        for second, sin in orders(maker(difference["other"], "aten.mul")):
            a, b = _half_of(first), _half_of(second)
            if a is None or b is None or (a[1], b[1]) != (0, 1) or a[0] is not b[0]:
                continue
            for left, right in orders(maker(parts[1], "aten.add")):
                if _is_product(left, second, cos) and _is_product(right, first, sin):
                    return _group(node, a[0], cos, sin)
    return None


def _is_product(tensor: Any, one: TensorMeta, other: TensorMeta) -> bool:
    return (one, other) in orders(maker(tensor, "aten.mul"))


def _joined(tensor: Any) -> list[Any]:
    """Return the parts of a concatenation along the last dimension, or []."""
    node = maker(tensor, "aten.cat", "aten.concat", "aten.concatenate")
    if node is None or node.attrs.get("dim") not in (-1, len(tensor.shape) - 1):
        return []
    return node.elements("tensors")


def _half_of(tensor: Any) -> tuple[TensorMeta, int] | None:
    """Return the tensor of which this is the first (0) or second (1) half along the last dimension, and 0 or 1."""
    node = tensor.producer if isinstance(tensor, TensorMeta) else None
    if node is None or not tensor.shape or node.attrs.get("dim") not in (-1, len(tensor.shape) - 1):
        return None
    whole, half = node.inputs[0], tensor.shape[-1]
    if not isinstance(half, int) or whole.shape[-1] != 2 * half:
        return None
    if base_name(node.op_type) in ("aten.split", "aten.chunk", "aten.split_with_sizes"):
        return whole, tensor.index
    if base_name(node.op_type) not in ("aten.slice", "aten.narrow") or node.attrs.get("step", 1) != 1:
        return None
    start = node.attrs.get("start") or 0
    return (whole, 0 if start == 0 else 1) if start in (0, half, -half) else None


def _group(node: OpNode, x: TensorMeta, cos: TensorMeta, sin: TensorMeta) -> Group:
    reads = {"input": x, "cos": cos, "sin": sin}
    return Group("rotary", between(node, reads.values()), reads)
