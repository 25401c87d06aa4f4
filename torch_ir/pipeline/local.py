"""All stages of a pipeline on this machine, each in a process of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.pipeline.rank import AXIS, StageRank
from torch_ir.pipeline.stages import check_pipeline
from torch_ir.run.executor import flat_inputs, read_sizes
from torch_ir.sharding.local_ranks import LocalRanks, alone, weights_for, whole
from torch_ir.sharding.rank_process import mesh_of
from torch_ir.verify.whole_run import Weights

_JOB = f"{__name__}:run_stage"


def run_pipeline(
    ir: IR, batches: Sequence[Sequence[Any]], weights: Weights, *, ranks: LocalRanks | None = None
) -> list[tuple[Any, ...]]:
    """The outputs of each batch; while a stage computes one, the stage before computes the next.

    The processes are those of `ranks`, or are started for this.
    """
    count = len(ir.graph_outputs)
    return [tuple(values[:count]) for values in left_by_pipeline(ir, batches, weights, ranks)]


def left_by_pipeline(
    ir: IR, batches: Sequence[Sequence[Any]], weights: Weights, ranks: LocalRanks | None
) -> list[list[Any]]:
    """Of each batch, the outputs, and then the new values of what the model changes."""
    needed = len(check_pipeline(ir).nodes) * math.prod(ir.mesh.values())
    flat = [_checked(ir, flat_inputs(ir, tuple(batch), {})) for batch in batches]  # before any process starts
    if ranks is None:
        with LocalRanks(needed) as own:
            return left_by_pipeline(ir, batches, weights, own)
    if ranks.count != needed:
        raise ExecutionError(f"the pipeline is for {needed} ranks, but there are {ranks.count}")
    found = ranks.ask(_JOB, {"ir": ir.to_json(), "batches": flat, **weights_for(weights)})
    return [_whole(ir, [rank[number] for rank in found], flat[number]) for number in range(len(flat))]


def _checked(ir: IR, values: list[Any]) -> list[Any]:
    """The inputs of the model, if they are what the graph takes; that of a mesh tells shapes of pieces alone."""
    if not ir.mesh:
        read_sizes(ir, values)
    return values


def run_stage(request: Mapping[str, Any]) -> list[dict[int, Any]]:
    """What one process does of a request of `run_pipeline`."""
    ir = IR.from_json(request["ir"])
    rank = StageRank(ir, mesh_of(((AXIS, len(ir.nodes)), *ir.mesh.items())))
    if request["path"] is not None:
        rank.load_weights(request["path"])
    else:
        rank.load_weights_from_state_dict(request["weights"])
    found = rank.left(request["batches"])
    return [{place: alone(value) for place, value in outputs.items()} for outputs in found]


def _whole(ir: IR, made: Sequence[Mapping[int, Any]], given: Sequence[Any]) -> list[Any]:
    """What a batch left, from what all ranks made of it; an input that is returned is as it was given."""
    each = math.prod(ir.mesh.values())
    number = {node: at for at, node in enumerate(ir.nodes)}
    inputs = dict(zip(ir.graph_inputs, given, strict=True))
    found = []
    for place, tensor in enumerate(ir.returns.inputs):
        if tensor.producer is None:
            found.append(inputs[tensor])
            continue
        first = number[tensor.producer] * each
        found.append(whole(ir, tensor, [rank[place] for rank in made[first : first + each]]))
    return found
