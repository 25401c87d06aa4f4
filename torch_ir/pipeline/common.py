"""Nodes that every stage can compute for itself: they need weights and sizes, but no input values."""

from __future__ import annotations

from collections.abc import Sequence

from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ops.effects import is_pure


def common_nodes(ir: IR) -> list[OpNode]:
    """Return the nodes, in order, that are copied to the stages that read them: masks, positions, prepared weights."""
    once = set(split_prologue(ir)[0])
    barred = {*ir.returns.inputs, *(symbol.tensor for symbol in ir.symbols.values())}
    changing = {target for target, _ in ir.mutations}
    free: set[TensorMeta] = {param for param in ir.params if param not in changing}
    found = []
    for node in ir.nodes:
        is_free = free.issuperset(node.inputs) and barred.isdisjoint(node.outputs)
        if node in once or (is_free and node.outputs and not called_by([node]) and is_pure(node)):
            found.append(node)
            free.update(node.outputs)
    return found


def own_nodes(ir: IR) -> list[OpNode]:
    """Return the nodes, in order, that belong to exactly one stage."""
    common = set(common_nodes(ir))
    return [node for node in ir.nodes if node not in common]


def with_common(ir: IR, rows: Sequence[Sequence[str]]) -> list[list[OpNode]]:
    """Return the nodes of each stage, preceded by copies of the common nodes that it needs."""
    common = common_nodes(ir)
    by_name = {node.name: node for node in ir.nodes}
    names = {name for row in rows for name in row}
    tensors = {tensor.name for tensor in ir.tensors()} - {tensor.name for node in common for tensor in node.outputs}
    found = []
    for row in rows:
        nodes = [by_name[name] for name in row]
        copies: dict[TensorMeta, TensorMeta] = {}
        own = [_copied(node, copies, names, tensors) for node in _behind(nodes, common)]
        for node in nodes:
            node.inputs = tuple(copies.get(tensor, tensor) for tensor in node.inputs)
        found.append([*own, *nodes])
    for node in common:
        node.inputs = ()
    ir.nodes = [node for nodes in found for node in nodes]
    return found


def _behind(nodes: Sequence[OpNode], common: Sequence[OpNode]) -> list[OpNode]:
    """Return the common nodes that these depend on, in order."""
    read = {tensor for node in nodes for tensor in node.inputs}
    found = []
    for node in reversed(common):
        if not read.isdisjoint(node.outputs):
            found.append(node)
            read.update(node.inputs)
    return found[::-1]


def _copied(node: OpNode, copies: dict[TensorMeta, TensorMeta], names: set[str], tensors: set[str]) -> OpNode:
    for tensor in node.outputs:
        copies[tensor] = tensor.copy(fresh(tensor.name, tensors))
    return node.copy(lambda tensor: copies.get(tensor, tensor), fresh(node.name, names))
