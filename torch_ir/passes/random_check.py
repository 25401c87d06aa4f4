"""Compare two graphs by running both on the same random and extreme inputs.

Small differences are judged by `rounding`: the error of the second graph may be a few times that of the first graph in
its own dtype, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.errors import ExecutionError, TorchIRError
from torch_ir.ir import IR, Dtype, OpNode
from torch_ir.ir.graph.operator_sets import FLOATS
from torch_ir.ir.regroup.functions import further_entries
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.clean.fold_constants import fold_constants
from torch_ir.passes.probe_inputs import INFINITE, NAN, Probe, drawn_inputs, probes
from torch_ir.passes.rounding import Rounding
from torch_ir.run.executor import IRExecutor
from torch_ir.run.seeding import seed_generators
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import random_weights

_ATTENTION = "aten.scaled_dot_product_attention.default"
_CUTS = frozenset(("relu", "hardtanh", "hardsigmoid"))
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
) -> Proof:
    """Run both graphs on random (or the given) weights and inputs and on extreme inputs, optionally all in one dtype.

    Further entry points of the file, such as the one for the next token, are compared too.
    """
    proof = _compared(before, after, dtype, inputs, weights, trials)
    for name, entry in further_entries(before).items():
        if proof.is_valid:
            other = _compared(entry, after.functions[name], dtype, None, weights, trials)
            reason = f"{name}: {other.reason}" if other.reason else ""
            worst, rounding = max(proof.max_diff, other.max_diff), proof.rounding or other.rounding
            proof = Proof(trials, worst, reason, rounding, proof.extremes + other.extremes)
    return proof


def _compared(
    before: IR, after: IR, dtype: str | None, inputs: Inputs | None, weights: Weights | None, trials: int
) -> Proof:
    weights = random_weights(before) if weights is None else weights
    if dtype is not None:
        before, after = retyped(before, dtype), retyped(after, dtype)
    judge = _Judge(before, after, weights)
    for probe in probes(before, inputs, trials):
        if reason := judge.objection(probe):
            return Proof(trials, judge.worst, reason)
    return Proof(trials, judge.worst, rounding=judge.rounding, extremes=judge.extremes)


class _Judge:
    """Runs two graphs with the same weights and collects their differences."""

    def __init__(self, before: IR, after: IR, weights: Weights) -> None:
        self.before = before
        self.one, self.other = bound(before, weights), bound(after, weights)
        self.tolerance = Rounding(before, weights, lambda: retyped(before, "float64"), bound)
        self.gains_kernels = _own_kernels(after) > _own_kernels(before)
        self.may_lose_nan = _cuts(after) > _cuts(before)
        self.worst, self.rounding, self.extremes, self.seed = 0.0, False, 0, -1

    def objection(self, probe: Probe) -> str:
        """Return why the second graph differs on these inputs, or ""; skip extreme inputs that the first rejects."""
        self.seed += 1
        if self.gains_kernels and probe.kind in (NAN, INFINITE):
            return ""
        try:
            one = self._ran(self.one, probe.values)
        except TorchIRError as error:
            if probe.is_extreme:
                return ""
            raise ExecutionError(f"the graph cannot be run on random inputs, or on the given ones: {error}") from error
        try:
            other = self._ran(self.other, probe.values)
        except TorchIRError as error:
            return f"the second graph fails: {error}"
        self.extremes += probe.is_extreme
        if not probe.is_extreme and one and all(map(_is_nothing, one)) and all(map(_is_nothing, other)):
            return NOTHING
        differences = [compare(wanted, got) for wanted, got in zip(one, other, strict=True)]
        is_lax = probe.kind == INFINITE or (probe.is_extreme and self.may_lose_nan)
        where = f" on {probe.kind}" if probe.is_extreme else ""
        if any(difference.reason for difference in differences):
            if why := self.tolerance.objection(probe.values, one, other, self._ran, may_be_finite=is_lax):
                index, _, reason = why.partition(": ")
                self.worst = max([self.worst, *(difference.max_diff for difference in differences)])
                targets = (target for target, _ in self.before.mutations)
                return f"{[*self.before.graph_outputs, *targets][int(index)].name}: {reason}{where}"
            self.rounding = self.rounding or not probe.is_extreme  # extreme inputs round anyway
        finite = [difference.max_diff for difference in differences if difference.max_diff != float("inf")]
        if not probe.is_extreme:
            self.worst = max([self.worst, *finite])
        return ""

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


def _own_kernels(ir: IR) -> int:
    """Count the calls of torch's attention and oneDNN, whose kernels treat NaN and infinities differently.

    Attention without a mask counts twice: it has another kernel, which returns zeros for a query of NaN.
    """
    attentions = [node for node in ir.all_nodes() if node.op_type == _ATTENTION]
    return len(attentions) + sum(node["attn_mask"] is None for node in attentions) + len(_called(ir))


def _cuts(ir: IR) -> int:
    """Count the oneDNN nodes with a fused activation that turns NaN into a number."""
    return sum(not _CUTS.isdisjoint((node.attrs.get("attr"), node.attrs.get("unary_attr"))) for node in _called(ir))


def _called(ir: IR) -> list[OpNode]:
    return [node for node in ir.all_nodes() if node.op_type.startswith("mkldnn.")]


def bound(ir: IR, weights: Weights) -> IRExecutor:
    """Bind the weights that a graph still has, in the dtypes it has them in."""
    keys = {key: param.dtype for param in ir.params if param.param for key in param.param.keys}
    kept = {key: weight.to(TORCH_DTYPES[keys[key]]) for key, weight in weights.items() if key in keys}
    return IRExecutor(ir, kept)


def _is_nothing(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and bool(value.isnan().all())


__all__ = ["NOTHING", "Inputs", "Proof", "Weights", "bound", "drawn_inputs", "prove", "retyped"]
