"""Prove a sharded graph: what its ranks give together is what the whole model gives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from torch_ir.errors import TorchIRError
from torch_ir.ir import IR
from torch_ir.ir.placements import REPLICATE, parse
from torch_ir.run.compare import compare
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.lockstep import run_in_lockstep
from torch_ir.run.weights import load_weights
from torch_ir.sharding.local_ranks import LocalRanks, Weights, whole_outputs
from torch_ir.verify import VerificationReport


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
    """Compare the outputs of all ranks, put together, with those of the model or the graph that was sharded.

    The ranks run in this process, one node after the other, or as the processes of `ranks`. Values that should be whole
    on every rank must be the same on all of them, to the bit.
    """
    try:
        values = flat_inputs(sharded, tuple(inputs), dict(kwargs or {}))
        results = _of_ranks(sharded, values, weights, ranks)
        expected = _of_whole(original, weights, inputs, dict(kwargs or {}))
    except TorchIRError as error:
        return False, VerificationReport(False, error_message=str(error))
    report = _compared(sharded, expected, whole_outputs(sharded, results), rtol, atol)
    if (unlike := _unlike(sharded, results)) and report.is_valid:
        report.is_valid, report.error_message = False, unlike
    count = "processes" if ranks else "ranks in lockstep"
    report.notes.append(
        f"{len(results)} {count}, mesh {', '.join(f'{name} = {n}' for name, n in sharded.mesh.items())}"
    )
    return report.is_valid, report


def _of_ranks(ir: IR, values: Sequence[Any], weights: Weights, ranks: LocalRanks | None) -> list[Any]:
    if ranks is not None:
        return ranks.run_each(ir, values, weights)
    return run_in_lockstep(ir, values, _loaded(weights))


def _loaded(weights: Weights) -> Mapping[str, torch.Tensor]:
    return load_weights(weights) if isinstance(weights, (str, os.PathLike)) else weights


def _of_whole(original: IR | nn.Module, weights: Weights, inputs: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    if isinstance(original, IR):
        executor = IRExecutor(original, _loaded(weights))
        return list(executor.run(flat_inputs(original, tuple(inputs), kwargs)).outputs)
    with torch.no_grad():
        made = original(*inputs, **kwargs)
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _compared(
    ir: IR, expected: Sequence[Any], actual: Sequence[Any], rtol: float | None, atol: float | None
) -> VerificationReport:
    if len(expected) != len(actual):
        told = f"the model returns {len(expected)} tensors, the graph {len(actual)}"
        return VerificationReport(False, error_message=told)
    details: list[dict[str, Any]] = []
    for index, (tensor, one, other) in enumerate(zip(ir.graph_outputs, expected, actual, strict=True)):
        found = compare(one, other, rtol, atol)
        facts = {"index": index, "name": tensor.name, "shape": list(one.shape), "dtype": tensor.dtype}
        close = {"is_close": not found.reason, "reason": found.reason}
        details.append({**facts, **close, "max_diff": found.max_diff, "mean_diff": found.mean_diff})
    return VerificationReport(
        all(row["is_close"] for row in details),
        max((row["max_diff"] for row in details), default=0.0),
        max((row["mean_diff"] for row in details), default=0.0),
        len(details),
        details,
    )


def _unlike(ir: IR, results: Sequence[Sequence[Any]]) -> str:
    """Which output, whole on every rank, is not the same on all of them."""
    for tensor, values in zip(ir.graph_outputs, zip(*results, strict=True), strict=True):
        if all(parse(text) == REPLICATE for text in tensor.placement or ()):
            other = next(
                (rank for rank, value in enumerate(values) if compare(values[0], value, 0.0, 0.0).reason), None
            )
            if other is not None:
                return f"output {tensor.name!r} of rank {other} is not that of rank 0"
    return ""
