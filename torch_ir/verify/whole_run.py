"""Runs of a whole model or its graph, and their comparison with a distributed run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torch_ir.ir import IR
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import WeightSource, weights_from
from torch_ir.verify.compare_runs import compare_changes, detail, is_hidden
from torch_ir.verify.reference_run import Original
from torch_ir.verify.verification import VerificationReport


@dataclass(frozen=True)
class WholeRun:
    """A run of the whole: outputs, tensors by name after it, and which it changed; `hidden` ones are inaccessible."""

    outputs: Sequence[Any]
    after: Mapping[str, Any]
    changed: Collection[str]
    hidden: Collection[str] = ()


def run_whole(
    original: IR | nn.Module, graph: IR, weights: WeightSource, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> WholeRun:
    """Run a model, with its state restored afterwards, or its graph; `graph` declares what may change."""
    if isinstance(original, IR):
        outcome = IRExecutor(original, weights_from(weights)).run(flat_inputs(original, args, kwargs))
        after = _by_name(original, list(outcome.mutations.values()))
        return WholeRun(outcome.outputs, after, after.keys())
    reference = Original(original, graph).called((args, kwargs))
    outputs = [leaf for leaf in pytree.tree_leaves(reference.output) if isinstance(leaf, torch.Tensor)]
    hidden = {target.key for target, _ in graph.mutations if target.key and is_hidden(target, reference)}
    return WholeRun(outputs, reference.after, reference.changed, hidden)


def _by_name(ir: IR, values: Sequence[Any]) -> dict[str, Any]:
    """Return the changed values by weight key or input position, in the order of the graph's mutations."""
    found: dict[str, Any] = {}
    for (target, _), value in zip(ir.mutations, values, strict=True):
        names = target.param.keys if target.param else (f"input {ir.graph_inputs.index(target)}",)
        found.update(dict.fromkeys(names, value))
    return found


def compared(
    ir: IR, expected: WholeRun, values: Sequence[Any], rtol: float | None, atol: float | None
) -> VerificationReport:
    """Compare a run of a graph: its outputs, then the new values of changed tensors."""
    count = len(ir.graph_outputs)
    if len(expected.outputs) != count:
        message = f"the model returns {len(expected.outputs)} tensors, the graph {count}"
        return VerificationReport(False, error_message=message)
    pairs = zip(ir.graph_outputs, expected.outputs, values[:count], strict=True)
    rows = [(tensor.name, one, compare(one, other, rtol, atol)) for tensor, one, other in pairs]
    declared = {name: value for name, value in _by_name(ir, values[count:]).items() if name not in expected.hidden}
    rows += compare_changes(expected.changed, expected.after, declared, rtol, atol)
    details = [detail(index, *row) for index, row in enumerate(rows)]
    return VerificationReport(
        all(row["is_close"] for row in details),
        max((row["max_diff"] for row in details), default=0.0),
        max((row["mean_diff"] for row in details), default=0.0),
        len(details),
        details,
    )
