"""Bound the differences that rounding can explain, from the error of the original graph in its own dtype.

The original graph is run in float64, which counts as exact, and in its own dtype on inputs and weights changed by one
unit in the last place. The error of a rewritten graph may be a few times that of the original, or the effect of such a
change, plus a few units in the last place. Anything beyond is a bug.

An integer result may differ if one of these changes flips it. In a quantised graph, a value next to a tie may be
rounded either way, and later layers amplify that step. So the graph is also run with all values moved up, and down,
before they are quantised. Elements that keep every bit in these runs depend on no tie; others may be further off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ops.effects import is_random
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes.pass_registry import apply_once
from torch_ir.rewrite import Builder, op, rule
from torch_ir.run.executor import IRExecutor
from torch_ir.run.tolerances import compare

_TIMES = 4  # times the error of the original
_UNITS = 8  # in the last place, at the scale of the result
# Errors of a sum in another order, in units of the largest quantised value; effects of two ties may cancel in one run.
_TIE_UNITS = (16, -16, 4, -4, 1, -1)
_CHANGES = 2  # runs with perturbed inputs and weights
_MOST_CHANGES = 32  # until an integer that differs is flipped by one of them
QUANTIZE = "quantized_decomposed.quantize_per_"
Weights = Mapping[str, Tensor]
Run = Callable[[IRExecutor, Sequence[Any]], list[Any]]


class Rounding:
    """Judges differences from the results of one graph; `wide` returns that graph in float64."""

    def __init__(self, ir: IR, weights: Weights, wide: Callable[[], IR], bind: Callable[[IR, Weights], IRExecutor]):
        self._ir, self._weights, self._make_wide, self._bind = ir, weights, wide, bind
        self._changed: list[IRExecutor] = []

    def objection(self, values: Sequence[Any], one: Sequence[Any], other: Sequence[Any], run: Run) -> str:
        """Return the index of the first result that rounding cannot explain, with the reason, or ""."""
        exact = self._exact(values, run) or [None] * len(one)
        moved = [self._run_changed(values, seed, run) for seed in range(_CHANGES)]
        flipped = [run(executor, values) for executor in self._flipped]
        for index, (wanted, got, true) in enumerate(zip(one, other, exact, strict=True)):
            ties = [results[index] for results in flipped]
            while why := _objection(wanted, got, true, [results[index] for results in moved], ties):
                if not _are_integers(wanted, got) or len(moved) == _MOST_CHANGES:
                    return f"{index}: {why}"
                moved.append(self._run_changed(values, len(moved), run))
        return ""

    def _exact(self, values: Sequence[Any], run: Run) -> list[Any] | None:
        """Return the results in float64; None if the graph draws random numbers or fails in float64."""
        if self._wide is None:
            return None
        try:
            return run(self._wide, [widened(value) for value in values])
        except ExecutionError:
            return None

    @cached_property
    def _wide(self) -> IRExecutor | None:
        if any(map(is_random, self._ir.all_nodes())):
            return None
        try:
            return self._bind(self._make_wide(), self._weights)
        except ExecutionError:
            return None

    def _run_changed(self, values: Sequence[Any], seed: int, run: Run) -> list[Any]:
        if seed == len(self._changed):
            self._changed.append(self._bind(self._ir, self._moved_weights(seed)))
        return run(self._changed[seed], _moved(values, seed))

    @cached_property
    def _flipped(self) -> list[IRExecutor]:
        graphs = [_moved_before_ties(self._ir, units) for units in _TIE_UNITS]
        return [self._bind(graph, self._weights) for graph in graphs if graph is not None]

    def _moved_weights(self, seed: int) -> Weights:
        """Return the weights, each changed by one unit in the last place; tied and quantised weights stay equal."""
        kept = _quantized_weights(self._ir)
        moved = dict(zip(self._weights, _moved([*self._weights.values()], seed), strict=True))
        moved |= {key: self._weights[key] for key in kept if key in moved}
        for keys in self._ir.tied_weights:
            for key in (given := [key for key in keys if key in moved]):
                moved[key] = moved[given[0]]
        return moved


def _moved_before_ties(ir: IR, units: int) -> IR | None:
    """Return a copy that moves values by so many units before it quantises them; None if it quantises only weights."""
    copy = with_calls_inline(ir).clone()
    made: set[TensorMeta] = set()

    @rule(op(*(f"{QUANTIZE}{name}" for name in ("tensor.default", "tensor.tensor", "token.default"))))
    def move(g: Builder, node: OpNode) -> object:
        """quantize(x, scale)  ->  quantize(x + scale * steps, scale)"""
        x, scale = node["input"], node["scales" if "token" in node.op_type else "scale"]
        if g.is_weight(x) or x in made:
            return None
        steps = units * torch.finfo(TORCH_DTYPES[x.dtype]).eps * (node["quant_max"] - node["quant_min"])
        steps = max(-0.5, min(0.5, steps))  # half a step moves every value
        is_number = not isinstance(scale, TensorMeta)
        other = scale if is_number else g.cast(scale, x.dtype)
        near = g.op(f"aten.add.{'Scalar' if is_number else 'Tensor'}", self=x, other=other, alpha=steps)
        made.add(near)
        return g.like(node, input=near)

    return copy if apply_once(copy, move) else None


def _quantized_weights(ir: IR) -> set[str]:
    """Return the keys of weights from which a quantised weight is computed."""
    once, _ = split_prologue(ir)
    read: set[TensorMeta] = set()
    for node in reversed(once):
        if node.op_type.startswith(QUANTIZE) or not read.isdisjoint(node.outputs):
            read.update(node.inputs)
    return {key for tensor in read if tensor.param for key in tensor.param.keys}


def _are_integers(one: Any, other: Any) -> bool:
    """Whether these are tensors of one integer or boolean dtype and shape."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dtype.is_floating_point:
        return False
    return not one.is_complex() and (one.shape, one.dtype) == (other.shape, other.dtype)


def _objection(one: Any, other: Any, exact: Any, moved: Sequence[Any], flipped: Sequence[Any]) -> str:
    """Return why rounding does not explain the difference between two results, or ""."""
    found = compare(one, other).reason
    if not found or not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return found
    others = (other, *moved, *flipped)
    if one.dtype != other.dtype or any(near.shape != one.shape for near in others):
        return found
    if one.is_complex():
        for part in (torch.real, torch.imag):
            true = None if exact is None or not exact.is_complex() else part(exact)
            near = [[part(each) for each in results] for results in (moved, flipped)]
            if why := _objection(part(one), part(other), true, *near):
                return why
        return ""
    if not one.is_floating_point():
        undecided = torch.zeros_like(one, dtype=torch.bool)
        for near in (*moved, *flipped, *([] if exact is None or exact.shape != one.shape else [exact])):
            undecided |= near != one
        return found if bool(((one != other) & ~undecided).any()) else ""
    return _beyond_bound(one, other, exact, moved, flipped, found)


def _beyond_bound(
    one: Tensor, other: Tensor, exact: Tensor | None, moved: Sequence[Tensor], flipped: Sequence[Tensor], found: str
) -> str:
    """Return why the second tensor is further from the exact result than rounding explains, or ""."""
    limits = torch.finfo(one.dtype)
    true = one.double() if exact is None or exact.shape != one.shape else exact.double()
    finite, others_finite, is_true = one.isfinite(), other.isfinite(), true.isfinite()
    at_the_edge = is_true & (true.abs() > limits.max / 2)
    if bool((finite & ~others_finite & ~at_the_edge).any()):
        return "NaN or infinity where the original is finite"
    if bool((~finite & others_finite & ~is_true).any()):
        return "finite where the original is NaN or infinite"
    settled = torch.stack([~finite & _equal(one, near) for near in (one, *moved, true)]).all(0)
    if bool((settled & ~_equal(one, other)).any()):
        return "another of NaN, infinity and negative infinity than the original"
    both = finite & others_finite & is_true
    rescued = ~finite & others_finite & is_true & ~at_the_edge  # the original overflowed
    scale = _largest(true[both | rescued])
    floor = _UNITS * (limits.eps * scale + limits.smallest_normal * limits.eps)
    at_a_tie = torch.zeros_like(both)
    for near in flipped:
        at_a_tie |= (near != one) & both
    for part, runs in ((~at_a_tie, moved), (at_a_tie, (*moved, *flipped))):
        error = max(_largest((near.double() - true)[both & part & near.isfinite()]) for near in (one, *runs))
        bound, gap = _TIMES * error + floor, _largest((other.double() - true)[(both | rescued) & part])
        if gap > bound:
            return f"{found}: off by {gap:.3g}, where rounding explains at most {bound:.3g}"
    return ""


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _equal(one: Tensor, other: Tensor) -> Tensor:
    """Whether elements are equal; NaN equals NaN."""
    return (one == other) | (one.isnan() & other.isnan())


def _moved(values: Sequence[Any], seed: int) -> list[Any]:
    """Return the values, each changed by one unit in the last place."""
    generator = torch.Generator().manual_seed(seed)
    return [_one_unit_off(value, generator) for value in values]


def _one_unit_off(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.element_size() < 2:
        return value
    coins = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int64, device="cpu")
    made = value + value * (coins.to(value) * 2 - 1) * torch.finfo(value.dtype).eps
    return torch.where(made.isfinite(), made, value)


def widened(value: Any) -> Any:
    """Return a floating-point tensor in float64; anything else as it is."""
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
