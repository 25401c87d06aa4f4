"""Bound the differences that rounding can explain, from the error of the original graph in its own dtype.

The original graph is run in float64, which counts as exact, and in its own dtype on inputs and weights changed by one
unit in the last place. The error of a rewritten graph may be a few times that of the original, or the effect of such a
change, plus a few units in the last place. Anything beyond is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.ops.effects import is_random
from torch_ir.run.executor import IRExecutor
from torch_ir.run.tolerances import compare

_TIMES = 4  # times the error of the original
_UNITS = 8  # in the last place, at the scale of the result
_CHANGES = range(2)  # seeds of the runs with perturbed inputs and weights
Weights = Mapping[str, torch.Tensor]
Run = Callable[[IRExecutor, Sequence[Any]], list[Any]]


class Rounding:
    """Judges differences from the results of one graph; `wide` returns that graph in float64."""

    def __init__(self, ir: IR, weights: Weights, wide: Callable[[], IR], bind: Callable[[IR, Weights], IRExecutor]):
        self._ir, self._weights, self._make_wide, self._bind = ir, weights, wide, bind

    def objection(self, values: Sequence[Any], one: Sequence[Any], other: Sequence[Any], run: Run) -> str:
        """Return the index of the first result that rounding cannot explain, with the reason, or ""."""
        exact = self._exact(values, run) or [None] * len(one)
        moved = [run(executor, _moved(values, seed)) for seed, executor in enumerate(self._changed)]
        for index, (wanted, got, true) in enumerate(zip(one, other, exact, strict=True)):
            if why := _objection(wanted, got, true, [results[index] for results in moved]):
                return f"{index}: {why}"
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

    @cached_property
    def _changed(self) -> list[IRExecutor]:
        return [self._bind(self._ir, self._moved_weights(seed)) for seed in _CHANGES]

    def _moved_weights(self, seed: int) -> Weights:
        """Return the weights, each changed by one unit in the last place; tied weights stay equal."""
        moved = dict(zip(self._weights, _moved([*self._weights.values()], seed), strict=True))
        for keys in self._ir.tied_weights:
            for key in (given := [key for key in keys if key in moved]):
                moved[key] = moved[given[0]]
        return moved


def _objection(one: Any, other: Any, exact: Any, moved: Sequence[Any]) -> str:
    """Return why rounding does not explain the difference between two results, or ""."""
    found = compare(one, other).reason
    if not found or not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return found
    if (one.shape, one.dtype) != (other.shape, other.dtype) or any(near.shape != one.shape for near in moved):
        return found
    if one.is_complex():
        for part in (torch.real, torch.imag):
            true = None if exact is None or not exact.is_complex() else part(exact)
            if why := _objection(part(one), part(other), true, [part(near) for near in moved]):
                return why
        return ""
    if not one.is_floating_point():
        undecided = torch.zeros_like(one, dtype=torch.bool)
        for near in (*moved, *([] if exact is None or exact.shape != one.shape else [exact])):
            undecided |= near != one
        return found if bool(((one != other) & ~undecided).any()) else ""
    return _beyond_bound(one, other, exact, moved, found)


def _beyond_bound(
    one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor | None, moved: Sequence[torch.Tensor], found: str
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
    own = [(near.double() - true)[both & near.isfinite()].abs() for near in (one, *moved)]
    error = max((float(gaps.max()) for gaps in own if gaps.numel()), default=0.0)
    gaps = (other.double() - true)[both | rescued].abs()
    scale = max((float(part.abs().max()) for part in (true[both | rescued],) if part.numel()), default=0.0)
    bound = _TIMES * error + _UNITS * (limits.eps * scale + limits.smallest_normal * limits.eps)
    if not gaps.numel() or float(gaps.max()) <= bound:
        return ""
    return f"{found}: off by {float(gaps.max()):.3g}, where rounding explains at most {bound:.3g}"


def _equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Whether elements are equal; NaN equals NaN."""
    return (one == other) | (one.isnan() & other.isnan())


def _moved(values: Sequence[Any], seed: int) -> list[Any]:
    """Return the values, each changed by one unit in the last place."""
    generator = torch.Generator().manual_seed(seed)
    return [_one_unit_off(value, generator) for value in values]


def _one_unit_off(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.element_size() < 2:
        return value
    coins = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int64, device="cpu")
    made = value + value * (coins.to(value.dtype) * 2 - 1) * torch.finfo(value.dtype).eps
    return torch.where(made.isfinite(), made, value)


def widened(value: Any) -> Any:
    """Return a floating-point tensor in float64; anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
