"""Nodes that every stage can compute for itself: they need weights and sizes, but no input values."""

from __future__ import annotations

from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
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
        calls = any(isinstance(value, FunctionRef) for value in node.attrs.values())
        if node in once or (is_free and node.outputs and not calls and is_pure(node)):
            found.append(node)
            free.update(node.outputs)
    return found


def own_nodes(ir: IR) -> list[OpNode]:
    """Return the nodes, in order, that belong to exactly one stage."""
    common = set(common_nodes(ir))
    return [node for node in ir.nodes if node not in common]
