"""Check that no node writes to the caller's tensors: R10. Changes are listed in `mutations`, not done in place."""

from __future__ import annotations

from collections.abc import Iterator

from torch_ir.analysis.memory.aliasing import shares_memory
from torch_ir.errors import GraphError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.effects import RUNNING_STATISTICS, changes_elements, mutated_arguments, writes_in_place
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload


def wrong_writes(ir: IR) -> Iterator[tuple[int, GraphError]]:
    """Yield errors for nodes that write to inputs, weights, or views of them."""
    declared = {target for target, _ in ir.mutations}
    given = {tensor for tensor in (*ir.graph_inputs, *ir.params) if tensor not in declared}
    for index, node in enumerate(ir.nodes):
        for tensor in _written(node):
            if tensor in given:
                yield index, _error(node, tensor.name)
        if not given.isdisjoint(node.inputs) and shares_memory(node, ir.functions):
            given.update(node.outputs)


def _written(node: OpNode) -> list[TensorMeta]:
    """Return the tensors that a node writes to."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or not writes_in_place(node) or not changes_elements(operator):
        return []
    names = mutated_arguments(operator) or RUNNING_STATISTICS
    return [tensor for name, tensor in zip(node.args, node.inputs, strict=True) if name.partition(".")[0] in names]


def _error(node: OpNode, name: str) -> GraphError:
    return GraphError(
        f"{node.op_type} writes to {name!r}, which belongs to the caller, but is not listed in mutations",
        "$.op_type",
        rule="R10",
        node=node.name,
        hint="list it in mutations",
    )
