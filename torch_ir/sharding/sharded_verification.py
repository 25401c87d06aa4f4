"""Verify a sharded graph: compare the assembled outputs and state changes of its ranks with the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.placements import REPLICATE, stored_placement
from torch_ir.run.executor import flat_inputs
from torch_ir.run.lockstep import left_in_lockstep
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import WeightSource, weights_from
from torch_ir.sharding.local_ranks import LocalRanks, whole
from torch_ir.verify import VerificationReport
from torch_ir.verify.whole_run import compared, run_whole


def verify_sharded(
    sharded: IR,
    original: IR | nn.Module,
    weights: WeightSource,
    inputs: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    ranks: LocalRanks | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> tuple[bool, VerificationReport]:
    """Compare the assembled outputs and state changes of all ranks with the model or graph that was sharded.

    The ranks run in lockstep in this process, or in the processes of `ranks`. Replicated values must be bit-identical
    on all ranks. Of a graph with several entry points, the first is run; to compare another, pass it for both sides, as
    `sharded.functions["decode"]`.
    """
    require_graph(sharded, "verify_sharded")
    call = tuple(inputs), dict(kwargs or {})
    try:
        values = flat_inputs(sharded, *call)
        if ranks is not None:
            left = ranks.left_by_each(sharded, values, weights)
        else:
            left = left_in_lockstep(sharded, values, weights_from(weights))
        expected = run_whole(original, sharded, weights, *call)
    except TorchIRError as error:
        return False, VerificationReport(False, error_message=str(error))
    report = compared(sharded, expected, _whole_values(sharded, left), rtol, atol)
    if (unlike := _unlike(sharded, left)) and report.is_valid:
        report.is_valid, report.error_message = False, unlike
    count = "processes" if ranks else "ranks in lockstep"
    report.notes.append(f"{len(left)} {count}, mesh {', '.join(f'{name} = {n}' for name, n in sharded.mesh.items())}")
    return report.is_valid, report


def _whole_values(ir: IR, left: Sequence[Sequence[Any]]) -> list[Any]:
    columns = map(list, zip(*left, strict=True))
    return [whole(ir, *pair) for pair in zip(_left_tensors(ir), columns, strict=True)]


def _left_tensors(ir: IR) -> list[TensorMeta]:
    """Return the outputs and the changed tensors, with their placements."""
    return [*ir.graph_outputs, *(target for target, _ in ir.mutations)]


def _unlike(ir: IR, left: Sequence[Sequence[Any]]) -> str:
    """Return which replicated tensor differs between ranks, or ""."""
    for tensor, values in zip(_left_tensors(ir), zip(*left, strict=True), strict=True):
        if all(stored_placement(text) == REPLICATE for text in tensor.placement or ()):
            other = next(
                (rank for rank, value in enumerate(values) if compare(values[0], value, 0.0, 0.0).reason), None
            )
            if other is not None:
                kind = "output" if tensor in ir.graph_outputs else "the new value of"
                return f"{kind} {tensor.name!r} differs between rank {other} and rank 0"
    return ""
