"""Data parallelism as a mesh axis: the batch is divided, weights are whole."""

from __future__ import annotations

from collections.abc import Mapping

from torch_ir.analysis.cost_model.traffic import bytes_of
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import ShardError
from torch_ir.ir import IR
from torch_ir.ir.sizes.specialize import substitute
from torch_ir.planning.plan_file import Axis, ParallelPlan
from torch_ir.sharding.rank_graph import is_function_call

_BATCH = "shard(0)"


def batch_axis(ir: IR, ranks: int) -> tuple[Axis, ...] | None:
    """Return the axis that divides the batch, the first size of the first input; None if it cannot be divided."""
    if ranks == 1:
        return ()
    batch = next((tensor.shape[0] for tensor in ir.graph_inputs if tensor.shape), None)
    if not isinstance(batch, int) or batch % ranks:
        return None
    inputs, outputs = (
        {tensor.name: _BATCH for tensor in tensors if tensor.shape[:1] == (batch,)}
        for tensors in (ir.graph_inputs, ir.graph_outputs)
    )
    axis = Axis("dp", ranks, {}, inputs, outputs)
    try:
        ParallelPlan("", (axis,)).shard(ir)
    except ShardError:
        return None
    return (axis,)


def between_layers(ir: IR, sizes: Mapping[str, int]) -> float:
    """Return the bytes of the widest first result of a layer, which one stage sends to the next."""
    results = [node.outputs[0] for node in ir.nodes if is_function_call(node) and node.outputs]
    found = results or [node.outputs[0] for node in ir.nodes if node.op_type.startswith("aten.linear")]
    return max((weight_of(substitute(bytes_of(each), sizes)) for each in found), default=0.0)
