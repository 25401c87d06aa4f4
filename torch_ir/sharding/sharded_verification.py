"""Prove a sharded graph: what its ranks give and change together is what the whole model gives and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.placements import REPLICATE, parse
from torch_ir.run.executor import flat_inputs
from torch_ir.run.lockstep import left_in_lockstep
from torch_ir.run.tolerances import compare
from torch_ir.sharding.local_ranks import LocalRanks, whole
from torch_ir.verify import VerificationReport
from torch_ir.verify.whole_run import Weights, compared, run_whole, weights_in


def verify_sharded(
    sharded: IR,
    original: IR | nn.Module,
    weights: Weights,
    inputs: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    ranks: LocalRanks | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> tuple[bool, VerificationReport]:
    """Compare what all ranks give and change, put together, with the model or the graph that was sharded.

    The ranks run in this process, one node after the other, or as the processes of `ranks`. Values that should be whole
    on every rank must be the same on all of them, to the bit. Of a graph with several entry points, the first is run;
    give another of both sides, as `sharded.functions["decode"]`, to compare that.
    """
    call = tuple(inputs), dict(kwargs or {})
    try:
        values = flat_inputs(sharded, *call)
        left = ranks.left_by_each(sharded, values, weights) if ranks else _in_lockstep(sharded, values, weights)
        expected = run_whole(original, sharded, weights, *call)
    except TorchIRError as error:
        return False, VerificationReport(False, error_message=str(error))
    report = compared(sharded, expected, _whole_values(sharded, left), rtol, atol)
    if (unlike := _unlike(sharded, left)) and report.is_valid:
        report.is_valid, report.error_message = False, unlike
    count = "processes" if ranks else "ranks in lockstep"
    report.notes.append(f"{len(left)} {count}, mesh {', '.join(f'{name} = {n}' for name, n in sharded.mesh.items())}")
    return report.is_valid, report


def _in_lockstep(ir: IR, values: Sequence[Any], weights: Weights) -> list[list[Any]]:
    return left_in_lockstep(ir, values, weights_in(weights))


def _whole_values(ir: IR, left: Sequence[Sequence[Any]]) -> list[Any]:
    columns = map(list, zip(*left, strict=True))
    return [whole(ir, *pair) for pair in zip(_left_tensors(ir), columns, strict=True)]


def _left_tensors(ir: IR) -> list[TensorMeta]:
    """The tensors that a run leaves behind, as they lie: outputs, and what it changes."""
    return [*ir.graph_outputs, *(target for target, _ in ir.mutations)]


def _unlike(ir: IR, left: Sequence[Sequence[Any]]) -> str:
    """Which tensor, whole on every rank, is not the same on all of them."""
    for tensor, values in zip(_left_tensors(ir), zip(*left, strict=True), strict=True):
        if all(parse(text) == REPLICATE for text in tensor.placement or ()):
            other = next(
                (rank for rank, value in enumerate(values) if compare(values[0], value, 0.0, 0.0).reason), None
            )
            if other is not None:
                kind = "output" if tensor in ir.graph_outputs else "the new value of"
                return f"{kind} {tensor.name!r} of rank {other} is not that of rank 0"
    return ""
