"""Run all stages of a pipeline on this machine, each in its own process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.errors import ExecutionError, PipelineError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.pipeline.pipeline_parts import is_training_pipeline
from torch_ir.pipeline.stage_process import AXIS, StageRank
from torch_ir.pipeline.stages import check_pipeline
from torch_ir.run.executor import flat_inputs, read_sizes
from torch_ir.run.weight_files import WeightSource
from torch_ir.sharding.local_ranks import LocalRanks, alone, weights_for, whole
from torch_ir.sharding.rank_process import mesh_of

_JOB = f"{__name__}:run_stage"


def run_pipeline(
    ir: IR, batches: Sequence[Sequence[Any]], weights: WeightSource, *, ranks: LocalRanks | None = None
) -> list[tuple[Any, ...]]:
    """Return the outputs of each batch; while a stage computes one batch, the stage before computes the next.

    The processes are those of `ranks`, or are started for this call.
    """
    require_graph(ir, "run_pipeline")
    if is_training_pipeline(ir):
        raise PipelineError("train_pipeline runs the pipeline of a training step")
    count = len(ir.graph_outputs)
    return [tuple(values[:count]) for values in left_by_pipeline(ir, batches, weights, ranks)]


def left_by_pipeline(
    ir: IR, batches: Sequence[Sequence[Any]], weights: WeightSource, ranks: LocalRanks | None
) -> list[list[Any]]:
    """Return, for each batch, the outputs, then the new values of changed tensors."""
    needed = len(check_pipeline(ir).nodes) * math.prod(ir.mesh.values())
    flat = [_checked(ir, flat_inputs(ir, tuple(batch), {})) for batch in batches]  # before any process starts
    if ranks is None:
        with LocalRanks(needed) as own:
            return left_by_pipeline(ir, batches, weights, own)
    if ranks.count != needed:
        raise ExecutionError(f"the pipeline needs {needed} ranks, but there are {ranks.count}")
    found = ranks.ask(_JOB, {"ir": ir.to_json(), "batches": flat, **weights_for(weights)})
    return [_whole(ir, [rank[number] for rank in found], flat[number]) for number in range(len(flat))]


def _checked(ir: IR, values: list[Any]) -> list[Any]:
    """Check the inputs against the graph; a sharded graph only has local shapes, so it is not checked."""
    if not ir.mesh:
        read_sizes(ir, values)
    return values


def run_stage(request: Mapping[str, Any]) -> list[dict[int, Any]]:
    """Run one stage for a request of `run_pipeline`."""
    ir = IR.from_json(request["ir"])
    rank = StageRank(ir, mesh_of(((AXIS, len(ir.nodes)), *ir.mesh.items())))
    if request["path"] is not None:
        rank.load_weights(request["path"])
    else:
        rank.load_weights_from_state_dict(request["weights"])
    found = rank.left(request["batches"])
    return [{place: alone(value) for place, value in outputs.items()} for outputs in found]


def _whole(ir: IR, made: Sequence[Mapping[int, Any]], given: Sequence[Any]) -> list[Any]:
    """Assemble the results of a batch from all ranks; a returned input is passed through."""
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
