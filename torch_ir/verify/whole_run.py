"""What a whole model, or its graph, gives and changes in a run, and what something else gives and changes instead."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_ir.ir import IR
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.tolerances import Difference, compare
from torch_ir.run.weights import load_weights
from torch_ir.verify.judge import is_hidden
from torch_ir.verify.reference_run import Original
from torch_ir.verify.verification import VerificationReport

Weights = Mapping[str, torch.Tensor] | str | os.PathLike[str]


def weights_in(weights: Weights) -> Mapping[str, torch.Tensor]:
    """The weights themselves, read where they are in a file."""
    return load_weights(weights) if isinstance(weights, (str, os.PathLike)) else weights


@dataclass(frozen=True)
class WholeRun:
    """What a run of the whole left behind: outputs, tensors by name as they are afterwards, and which it changed.

    Those that are `hidden` are kept where nobody can look.
    """

    outputs: Sequence[Any]
    after: Mapping[str, Any]
    changed: Collection[str]
    hidden: Collection[str] = ()


def run_whole(
    original: IR | nn.Module, graph: IR, weights: Weights, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> WholeRun:
    """One run of a model, on copies of what it may write to, or of its graph; `graph` says what may be changed."""
    if isinstance(original, IR):
        outcome = IRExecutor(original, weights_in(weights)).run(flat_inputs(original, args, kwargs))
        after = _by_name(original, list(outcome.mutations.values()))
        return WholeRun(outcome.outputs, after, after.keys())
    witness = Original(original, graph).called((args, kwargs))
    outputs = [leaf for leaf in pytree.tree_leaves(witness.output) if isinstance(leaf, torch.Tensor)]
    hidden = {target.key for target, _ in graph.mutations if target.key and is_hidden(target, witness)}
    return WholeRun(outputs, witness.after, witness.changed, hidden)


def _by_name(ir: IR, values: Sequence[Any]) -> dict[str, Any]:
    """What a graph changes, in the order of its mutations, by the keys of weights and the places of inputs."""
    found: dict[str, Any] = {}
    for (target, _), value in zip(ir.mutations, values, strict=True):
        names = target.param.keys if target.param else (f"input {ir.graph_inputs.index(target)}",)
        found.update(dict.fromkeys(names, value))
    return found


def compared(
    ir: IR, expected: WholeRun, values: Sequence[Any], rtol: float | None, atol: float | None
) -> VerificationReport:
    """What is to be said about a run of a graph: its outputs, and then the new values of what it changes."""
    count = len(ir.graph_outputs)
    if len(expected.outputs) != count:
        told = f"the model returns {len(expected.outputs)} tensors, the graph {count}"
        return VerificationReport(False, error_message=told)
    pairs = zip(ir.graph_outputs, expected.outputs, values[:count], strict=True)
    rows = [(tensor.name, one, compare(one, other, rtol, atol)) for tensor, one, other in pairs]
    rows += _changes(expected, _by_name(ir, values[count:]), rtol, atol)
    details = [_detail(index, *row) for index, row in enumerate(rows)]
    return VerificationReport(
        all(row["is_close"] for row in details),
        max((row["max_diff"] for row in details), default=0.0),
        max((row["mean_diff"] for row in details), default=0.0),
        len(details),
        details,
    )


def _changes(
    expected: WholeRun, changed: Mapping[str, Any], rtol: float | None, atol: float | None
) -> list[tuple[str, Any, Difference]]:
    """Everything that either side changed, which must be the same with the same values."""
    rows = []
    for name in dict.fromkeys([*expected.changed, *(name for name in changed if name not in expected.hidden)]):
        one, other = expected.after.get(name), changed.get(name)
        if one is None or other is None:
            sides = ("the model", "the graph") if other is None else ("the graph", "the model")
            found = Difference(f"{sides[0]} changes it, {sides[1]} does not", float("inf"), float("inf"))
        else:
            found = compare(one, other, rtol, atol)
        rows.append((f"{name} afterwards", other if one is None else one, found))
    return rows


def _detail(index: int, name: str, value: torch.Tensor, found: Difference) -> dict[str, Any]:
    facts = {"index": index, "name": name, "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    close = {"is_close": not found.reason, "reason": found.reason}
    return {**facts, **close, "max_diff": found.max_diff, "mean_diff": found.mean_diff}
