"""Nodes that are copied to every stage that reads them: they need weights and sizes, but no input values."""

from __future__ import annotations

from collections.abc import Sequence

from torch_ir.analysis.dependencies.slices import needed_for
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ops.effects import is_pure

_MOST_COPIED, _MOST_COPIES = 10_000, 10  # nodes in all stages, and for each node of a larger graph


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
    names = Names(name for row in rows for name in row)
    made = {tensor.name for node in common for tensor in node.outputs}
    tensors = Names(tensor.name for tensor in ir.tensors() if tensor.name not in made)
    budget = Budget(max(_MOST_COPIED, _MOST_COPIES * len(ir.nodes)))
    found = []
    for row in rows:
        nodes = [by_name[name] for name in row]
        copies: dict[TensorMeta, TensorMeta] = {}
        shared = needed_for((tensor for node in nodes for tensor in node.inputs), common)
        if not budget.take(len(shared)):
            raise PipelineError(f"{len(rows)} stages would have too many copies of {len(common)} nodes that they share")
        own = [_copied(node, copies, names, tensors) for node in shared]
        for node in nodes:
            node.inputs = tuple(copies.get(tensor, tensor) for tensor in node.inputs)
        found.append([*own, *nodes])
    for node in common:
        node.inputs = ()
    ir.nodes = [node for nodes in found for node in nodes]
    return found


def _copied(node: OpNode, copies: dict[TensorMeta, TensorMeta], names: set[str], tensors: set[str]) -> OpNode:
    for tensor in node.outputs:
        copies[tensor] = tensor.copy(fresh(tensor.name, tensors))
    return node.copy(lambda tensor: copies.get(tensor, tensor), fresh(node.name, names))
