"""Verify a pipeline: compare the outputs and state changes of its stages with the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from torch_ir.errors import TorchIRError
from torch_ir.ir import IR
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.pipeline.in_turn import left_in_turn
from torch_ir.pipeline.local_stages import left_by_pipeline
from torch_ir.run.executor import flat_inputs
from torch_ir.run.weight_files import WeightSource, weights_from
from torch_ir.sharding.local_ranks import LocalRanks
from torch_ir.verify import VerificationReport
from torch_ir.verify.whole_run import compared, run_whole


def verify_pipeline(
    pipeline: IR,
    original: IR | nn.Module,
    weights: WeightSource,
    inputs: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    ranks: LocalRanks | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> tuple[bool, VerificationReport]:
    """Compare the outputs and state changes of all stages with the model or graph that was split.

    The stages run one after the other in this process, or in the processes of `ranks`; those of a sharded graph always
    in processes.
    """
    require_graph(pipeline, "verify_pipeline")
    is_apart = ranks is not None or bool(pipeline.mesh)
    try:
        values = flat_inputs(pipeline, tuple(inputs), dict(kwargs or {}))
        if is_apart:
            (left,) = left_by_pipeline(pipeline, [values], weights, ranks)
        else:
            left = left_in_turn(pipeline, values, weights_from(weights))
        expected = run_whole(original, pipeline, weights, tuple(inputs), dict(kwargs or {}))
    except TorchIRError as error:
        return False, VerificationReport(False, error_message=str(error))
    report = compared(pipeline, expected, left, rtol, atol)
    how = "each in its own processes" if is_apart else "one after the other in one process"
    report.notes.append(f"{len(pipeline.nodes)} stages, {how}")
    return report.is_valid, report
