"""Update inputs that a graph changes in their own memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_ir.analysis.memory.aliasing import memory_of
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload, dense_memory_key, schema_of


def separate_changes(ir: IR) -> list[tuple[TensorMeta, TensorMeta]]:
    """Return the inputs that a graph changes, with their new values, which share memory with no input or other result.

    Only these may be written before the graph has returned.
    """
    memories = [memory_of(tensor, ir.functions) for tensor in ir.returns.inputs]
    if any(memory is None for memory in memories):
        return []
    returned = Counter(tensor for memory in memories for tensor in memory or ())
    given = {*ir.graph_inputs, *ir.params}
    found = dict(zip(ir.returns.inputs, memories, strict=True))
    return [
        (target, value)
        for target, value in ir.mutations
        if target.param is None and all(returned[each] == 1 and each not in given for each in found[value] or ())
    ]


def input_updates(ir: IR) -> dict[OpNode, OpOverload]:
    """Map nodes that compute the new value of an input to operators that write it into the input itself.

    `cache := index_copy(cache, ...)` becomes `index_copy_`, if nothing else reads the old value.
    """
    found: dict[OpNode, OpOverload] = {}
    for target, value in separate_changes(ir):
        node = value.producer
        if node is not None and len(target.consumers) == 1:
            operator = _in_place_variant(node)
            if operator is not None and node[schema_of(operator).arguments[0].name] is target:
                found[node] = operator
    return found


def write_back(
    ir: IR, values: Sequence[Any], changed: Mapping[TensorMeta, Any], outputs: Sequence[Any]
) -> Sequence[Any]:
    """Copy the new values of inputs into the inputs, unless they are there already.

    Return the outputs, copied before if they share the memory of such an input: they are its old value.
    """
    pairs = zip(ir.graph_inputs, values, strict=True)
    given = {tensor: value for tensor, value in pairs if tensor in changed and isinstance(value, torch.Tensor)}
    pending = {tensor: changed[tensor] for tensor, value in given.items() if changed[tensor] is not value}
    memory = {dense_memory_key(value) for value in given.values()}
    new = {
        tensor: value.clone() if dense_memory_key(value) in memory else value  # another copy may overwrite it
        for tensor, value in pending.items()
    }
    outputs = apart_from(outputs, [given[tensor] for tensor in pending])
    for tensor, value in new.items():
        given[tensor].copy_(value)
    return outputs


def apart_from(outputs: Sequence[Any], written: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs, copied where they share memory with a tensor that will be written."""
    memory = {dense_memory_key(value) for value in written} - {None}
    return [value.clone() if dense_memory_key(value) in memory else value for value in outputs] if memory else outputs


def _in_place_variant(node: OpNode) -> OpOverload | None:
    """Return `aten.add_.Tensor` for `aten.add.Tensor`; None if there is none with the same arguments."""
    operator = find_operator(node.op_type)
    if not isinstance(operator, OpOverload) or len(node.outputs) != 1 or not node.op_type.startswith("aten."):
        return None
    packet, _, overload = node.op_type.rpartition(".")
    other = find_operator(f"{packet}_.{overload}")
    if not isinstance(other, OpOverload):
        return None
    taken = [[(each.name, str(each.type)) for each in schema_of(one).arguments] for one in (operator, other)]
    return other if taken[0] == taken[1] else None
