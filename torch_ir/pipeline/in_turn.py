"""Run all stages of a pipeline in this process, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch_ir.errors import PipelineError
from torch_ir.ir import IR
from torch_ir.pipeline.stages import check_pipeline, stage_of
from torch_ir.run.executor import IRExecutor, Outcome
from torch_ir.run.stored import Weight
from torch_ir.run.weight_files import weights_read


def left_in_turn(ir: IR, values: Sequence[Any], weights: Mapping[str, Weight]) -> list[Any]:
    """Return the outputs, then the new values of changed tensors."""
    if check_pipeline(ir).mesh:
        raise PipelineError("the stages of a sharded graph run in one process per rank; use run_pipeline")
    known = dict(zip((tensor.name for tensor in ir.graph_inputs), values, strict=True))
    for number in range(len(ir.nodes)):
        stage = stage_of(ir, number)
        executor = IRExecutor(stage, weights_read(stage, weights))
        outcome = executor.run([known[tensor.name] for tensor in stage.graph_inputs])
        known.update(made_by(stage, outcome))
    return [known[tensor.name] for tensor in ir.returns.inputs]


def made_by(stage: IR, outcome: Outcome) -> dict[str, Any]:
    """Return the results of a stage by name: outputs and new values of changed tensors."""
    values = (*outcome.outputs, *outcome.mutations.values())
    return dict(zip((tensor.name for tensor in stage.returns.inputs), values, strict=True))
