"""Compare two graphs by running both on the same random and extreme inputs.

Small differences are judged by `rounding`: the error of the second graph may be a few times that of the first graph in
its own dtype, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.errors import ExecutionError, TorchIRError
from torch_ir.ir import IR, Dtype
from torch_ir.ir.graph.operator_sets import FLOATS
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.ops.fast_paths import plain_kernels
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.clean.fold_constants import fold_constants
from torch_ir.passes.probe_inputs import Probe, drawn_inputs, has_any, probes
from torch_ir.passes.rounding import Rounding
from torch_ir.rewrite import CUTS, REORDERS, SPREADS
from torch_ir.rewrite.change_log import Change
from torch_ir.run.executor import IRExecutor
from torch_ir.run.seeding import seed_generators
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import random_weights

NOTHING = "both return only NaN, so nothing was compared"
Inputs = Sequence[torch.Tensor]
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Proof:
    """The result of comparing two graphs; `reason` is why they differ, `max_diff` the largest difference."""

    trials: int
    max_diff: float
    reason: str = ""
    rounding: bool = False  # results differ, but no more than the rounding of the first graph explains
    extremes: int = 0  # number of extreme input sets tried

    @property
    def is_valid(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"not the same: {self.reason}"
        how = "equal up to rounding" if self.rounding else "the same"
        return f"{how} on {self.trials} sets of random inputs and weights, max diff {self.max_diff:.3g}"


def prove(
    before: IR,
    after: IR,
    dtype: str | None = None,
    *,
    inputs: Inputs | None = None,
    weights: Weights | None = None,
    trials: int = 2,
    changes: Iterable[Change] = (),
) -> Proof:
    """Run both graphs on random (or the given) weights and inputs and on extreme inputs, optionally all in one dtype.

    `changes` that made the second graph say how its results may differ for NaN and infinities. Further entry points of
    the file, such as the one for the next token, are compared too.
    """
    non_finite = {what for change in changes for what in change.non_finite}

    def compared(before: IR, after: IR, inputs: Inputs | None) -> Proof:
        known = random_weights(before) if weights is None else weights
        if dtype is not None:
            before, after = retyped(before, dtype), retyped(after, dtype)
        judge = _Judge(before, after, known, non_finite)
        for probe in probes(before, inputs, trials):
            if reason := judge.objection(probe):
                return Proof(trials, judge.worst, reason)
        return Proof(trials, judge.worst, rounding=judge.rounding, extremes=judge.extremes)

    proof = compared(before, after, inputs)
    for name, entry in further_entries(before).items():
        if proof.is_valid:
            other = compared(entry, after.functions[name], None)
            reason = f"{name}: {other.reason}" if other.reason else ""
            worst, rounding = max(proof.max_diff, other.max_diff), proof.rounding or other.rounding
            proof = Proof(trials, worst, reason, rounding, proof.extremes + other.extremes)
    return proof


class _Judge:
    """Runs two graphs with the same weights and collects their differences."""

    def __init__(self, before: IR, after: IR, weights: Weights, non_finite: Collection[str]) -> None:
        self.before, self.non_finite = before, non_finite
        self.one, self.other = bound(before, weights), bound(after, weights)
        self.tolerance = Rounding(before, weights, lambda: retyped(before, "float64"), bound)
        self.worst, self.rounding, self.extremes, self.seed = 0.0, False, 0, -1
        self.values: Sequence[Any] = ()  # inputs and results of the last run of both

    def objection(self, probe: Probe) -> str:
        """Return why the second graph differs on these inputs, or ""; skip extreme inputs that the first rejects.

        Differences with NaN and infinities are judged without oneDNN and flash attention.
        """
        self.seed += 1
        self.extremes += probe.is_extreme
        worst, self.values = self.worst, probe.values
        why = self._objection(probe)
        if why and has_any(_is_special, self.values):
            self.worst = worst
            with plain_kernels():
                why = self._objection(probe)
        return why

    def _objection(self, probe: Probe) -> str:
        try:
            one = self._ran(self.one, probe.values)
        except TorchIRError as error:
            if probe.is_extreme:
                self.extremes -= 1
                return ""
            raise ExecutionError(f"the graph cannot be run on random inputs, or on the given ones: {error}") from error
        try:
            other = self._ran(self.other, probe.values)
        except TorchIRError as error:
            return f"the second graph fails: {error}"
        self.values = [*probe.values, *one, *other]
        other = self._excused(probe.values, one, other)
        if not probe.is_extreme and one and all(map(_is_nothing, one)) and all(map(_is_nothing, other)):
            return NOTHING
        differences = [compare(wanted, got) for wanted, got in zip(one, other, strict=True)]
        where = f" on {probe.kind}" if probe.is_extreme else ""
        if any(difference.reason for difference in differences):
            if why := self.tolerance.objection(probe.values, one, other, self._ran):
                index, _, reason = why.partition(": ")
                self.worst = max([self.worst, *(difference.max_diff for difference in differences)])
                targets = (target for target, _ in self.before.mutations)
                return f"{[*self.before.graph_outputs, *targets][int(index)].name}: {reason}{where}"
            self.rounding = self.rounding or not probe.is_extreme  # extreme inputs round anyway
        finite = [difference.max_diff for difference in differences if difference.max_diff != float("inf")]
        if not probe.is_extreme:
            self.worst = max([self.worst, *finite])
        return ""

    def _excused(self, values: Sequence[Any], one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
        """Return the results of the second graph, with those of the first where `non_finite` lets them differ."""
        cuts, spreads = CUTS in self.non_finite, SPREADS in self.non_finite and has_any(_is_special, values)
        reorders = REORDERS in self.non_finite and has_any(torch.isinf, values)
        usual = self._ran(self.one, [_finite(value) for value in values]) if spreads else one
        kept = []
        for wanted, got, finite in zip(one, other, usual, strict=True):
            if isinstance(wanted, torch.Tensor) and (wanted.shape, wanted.dtype) == (got.shape, got.dtype):
                may_differ = wanted.isnan() & (cuts or reorders) | got.isnan() & (cuts or spreads)
                if spreads and finite.shape == wanted.shape:
                    may_differ |= finite == wanted
                got = torch.where(may_differ, wanted, got)
            kept.append(got)
        return kept

    def _ran(self, executor: IRExecutor, values: Sequence[Any]) -> list[Any]:
        seed_generators(self.seed)
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
        outcome = executor.run(copies)
        return [*outcome.outputs, *outcome.mutations.values()]


def retyped(ir: IR, dtype: str) -> IR:
    """Return a copy that does all floating-point computation in this dtype.

    Constants are folded first, in their own dtypes.
    """
    if dtype not in FLOATS:
        raise ExecutionError(f"unknown dtype {dtype!r}; expected one of {', '.join(FLOATS)}")
    copy = ir.clone()
    fold_constants(copy)
    _retype(copy, dtype)
    return copy


def _retype(ir: IR, dtype: str) -> None:
    for tensor in (tensor for graph in ir.all_graphs() for tensor in graph.tensors()):
        if tensor.dtype in FLOATS:
            if tensor.param is not None and tensor.param.data is not None:
                data = from_tensor(to_tensor(tensor.param.data).to(TORCH_DTYPES[dtype]))
                tensor.param = type(tensor.param)(tensor.param.keys, tensor.param.kind, data)
            tensor.dtype = dtype
    for node in ir.all_nodes():
        node.attrs = {
            name: Dtype(dtype) if isinstance(value, Dtype) and value in FLOATS else value
            for name, value in node.attrs.items()
        }
        if not node.inputs and node.outputs[:1] and node.outputs[0].dtype == dtype and "dtype" in node.attrs:
            node.attrs["dtype"] = Dtype(dtype)  # factory functions default to float32


def bound(ir: IR, weights: Weights) -> IRExecutor:
    """Bind the weights that a graph still has, in the dtypes it has them in."""
    keys = {key: param.dtype for param in ir.params if param.param for key in param.param.keys}
    kept = {key: weight.to(TORCH_DTYPES[keys[key]]) for key, weight in weights.items() if key in keys}
    return IRExecutor(ir, kept)


def _is_special(value: torch.Tensor) -> torch.Tensor:
    return ~value.isfinite()


def _finite(value: Any) -> Any:
    """Return an input with ones in place of NaN and infinities."""
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return torch.where(value.isfinite(), value, torch.ones_like(value)) if is_float else value


def _is_nothing(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and bool(value.isnan().all())


__all__ = ["NOTHING", "Inputs", "Proof", "Weights", "bound", "drawn_inputs", "prove", "retyped"]
