"""Inputs in whose storage a graph counts elements: `as_strided` may read what is before, between and after theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_ir.analysis.memory.aliasing import COUNTING, counted_operands, counting_functions, memory_of
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ops.prepare_run import with_calls_inline


def counted_inputs(ir: IR) -> list[int]:
    """Return the positions of inputs in whose storage a node counts."""
    if not any(node.op_type.startswith(COUNTING) for node in ir.all_nodes()):
        return []
    flat = with_calls_inline(ir)
    found: set[TensorMeta] = set()
    counting = counting_functions(flat.functions)
    for node in flat.nodes:
        for tensor in counted_operands(node, counting):
            memory = memory_of(tensor, flat.functions)
            found.update(flat.graph_inputs if memory is None else memory)
    return [index for index, tensor in enumerate(flat.graph_inputs) if tensor in found]


def refuse_parts(ir: IR, counted: Sequence[int], values: Sequence[Any]) -> None:
    """Raise ExecutionError if one of these inputs is not a whole storage in order, which is all that is passed on."""
    for index in counted:
        value, name = values[index], ir.graph_inputs[index].name
        if isinstance(value, torch.Tensor) and (value.storage_offset() or not value.is_contiguous()):
            raise ExecutionError(
                f"the graph counts elements in the storage of input {name!r}, which is a view of another tensor; "
                "clone the input, or run the graph with IRExecutor"
            )
