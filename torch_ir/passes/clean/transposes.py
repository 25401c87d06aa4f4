"""Transposes: write each as `aten.permute`, merge or cancel pairs, also across element-wise operators."""

from __future__ import annotations

from typing import Any

import torch

from torch_ir.analysis.shapes.permutations import (
    ORDERS,
    PERMUTE,
    Order,
    after,
    is_still,
    keeps_elements,
    order_of,
    split_before,
)
from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ops.effects import is_pure
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.passes.clean.reshapes import RESHAPE
from torch_ir.passes.clean.same_layout import as_sizes, is_like
from torch_ir.passes.pass_registry import rule_pass
from torch_ir.rewrite import Builder, op, rule

_CASTS = ("aten.to.dtype", "aten._to_copy.default")
_MOST_OPERANDS = 100  # visited between two permutes


def _permuted(g: Builder, x: TensorMeta, order: Order) -> TensorMeta:
    return x if is_still(order) else g.op(PERMUTE, self=x, dims=list(order))


@rule(op(*ORDERS, self=op(*ORDERS, self="x").named("inner")))
def one_permute(g: Builder, node: OpNode, inner: OpNode, x: TensorMeta) -> Any:
    """permute(permute(x, a), b)  ->  permute(x, b after a), or x if that is the identity"""
    return _permuted(g, x, after(order_of(inner), order_of(node)))


@rule(op(*ORDERS, self="x"))
def written_as_permute(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """transpose(x, 1, 2), movedim(x, 1, 2), mT(x)  ->  permute(x, [0, 2, 1])"""
    order = order_of(node)
    if node.op_type == PERMUTE and list(order) == node["dims"]:
        return None
    return _permuted(g, x, order)


@rule(op(*ORDERS, self="x"))
def order_of_ones(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """permute(x: [2, 1, 3], [1, 0, 2])  ->  reshape(x, [1, 2, 3]);  strides of sizes of 1 may select another kernel"""
    order = order_of(node)
    return g.op(RESHAPE, self=x, shape=as_sizes(x.shape[dim] for dim in order)) if keeps_elements(order, x) else None


@rule(op(RESHAPE, self=op(*ORDERS, self="x").named("inner").read_once()))
def split_first(g: Builder, node: OpNode, inner: OpNode, x: TensorMeta) -> Any:
    """reshape(permute(reshape(x, [8, 6]), [1, 0]), [2, 3, 8])  ->  permute(reshape(x, [8, 2, 3]), [1, 2, 0])

    Applied only if it makes two reshapes or two permutes adjacent.
    """
    if not _is_made_by(x, RESHAPE) and not all(reader.op_type in ORDERS for reader in node.output.consumers):
        return None
    found = split_before(order_of(inner), x.shape, node.output.shape)
    if found is None:
        return None
    sizes, order = found
    made = _permuted(g, g.op(RESHAPE, self=x, shape=as_sizes(sizes)), order)
    return made if is_like(made, node.output) else None


def _is_made_by(tensor: TensorMeta, op_type: str) -> bool:
    return tensor.producer is not None and tensor.producer.op_type == op_type and len(tensor.consumers) == 1


@rule(op(PERMUTE, self="x"))
def through_operators(g: Builder, node: OpNode, x: TensorMeta) -> Any:
    """permute(relu(permute(x, a)), b)  ->  relu(x), where b undoes a; also through several operators and operands"""
    if x.producer is None or not _is_elementwise(x.producer) or g.is_weight(x):
        return None
    order = order_of(node)
    if not _saves_permutes(g, x, order):
        return None
    made = _sunk(g, x, order)
    return made if is_like(made, node.output) else None


def _is_elementwise(node: OpNode) -> bool:
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or executor_of(node) is not None or len(node.outputs) != 1:
        return False
    return (torch.Tag.pointwise in operator.tags or node.op_type in _CASTS) and is_pure(node)


def _saves_permutes(g: Builder, tensor: TensorMeta, order: Order) -> bool:
    """Whether moving the permutation above the element-wise operators that compute a tensor saves permutes."""
    saved = 1
    left = [tensor]
    for _ in range(_MOST_OPERANDS):
        if not left:
            return saved > 0
        one = left.pop()
        maker = one.producer
        if g.is_weight(one):  # computed once
            continue
        if maker is None or len(one.shape) != len(order):
            return False
        if maker.op_type in ORDERS:
            is_undone = is_still(after(order_of(maker), order))
            saved += (len(one.consumers) == 1) - (not is_undone)
        elif len(one.consumers) == 1 and _is_elementwise(maker):
            left += maker.inputs
        else:
            return False
    return False


def _sunk(g: Builder, tensor: TensorMeta, order: Order) -> TensorMeta:
    """Rebuild a tensor with permuted dimensions, from operands permuted in the same way."""
    maker = tensor.producer
    if maker is None or g.is_weight(tensor):
        return _permuted(g, _with_rank(g, tensor, len(order)), order) if tensor.shape else tensor
    if maker.op_type in ORDERS:
        return _permuted(g, maker["self"], after(order_of(maker), order))
    operands = {name: _sunk(g, source, order) for name, source in zip(maker.args, maker.inputs, strict=True)}
    return g.like(maker, **operands)


def _with_rank(g: Builder, weight: TensorMeta, rank: int) -> TensorMeta:
    if len(weight.shape) == rank:
        return weight
    return g.op(RESHAPE, self=weight, shape=[1] * (rank - len(weight.shape)) + as_sizes(weight.shape))


transposes = rule_pass(
    "transposes",
    "Write every transposition as a permute, and cancel those that undo each other.",
    [one_permute, written_as_permute, split_first, through_operators],
    may_raise=["peak"],
)
