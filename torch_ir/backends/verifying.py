"""Compare a compiled graph with the executor on random and rounded inputs at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_ir.analysis.shapes.open_sizes import points_of
from torch_ir.errors import ExecutionError
from torch_ir.ir import IR
from torch_ir.passes.random_check import drawn_inputs, retyped
from torch_ir.run.executor import IRExecutor
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.tolerances import compare

_POINTS = 3  # choices of symbolic sizes
_UNITS = 16  # allowed error in units of the dtype's precision at the largest element
_NEARER = 8  # allowed error as a multiple of the executor's own error against float64


def verify(name: str, run: Callable[[Sequence[Any]], Sequence[Any]], ir: IR, weights: Mapping[str, Weight]) -> None:
    """Raise ExecutionError if a back end's results differ from the executor's by more than rounding.

    `run` takes the inputs of the graph and returns its outputs and the new values of changed tensors.
    """
    for label, values in _probes(ir):
        wanted, got = _ran(IRExecutor(ir, weights), values), _seeded(run, values)  # an executor keeps its state
        exact: list[Any] | None = None
        for index, (one, other) in enumerate(zip(wanted, got, strict=True)):
            reason = compare(one, other).reason
            if reason and exact is None:
                exact = _in_float64(ir, weights, values)
            if reason and not _is_rounding(one, other, exact[index] if exact else None):
                raise ExecutionError(
                    f"{name} does not compute {ir.model_name or 'the graph'} as the executor does: "
                    f"{ir.returns.inputs[index].name!r} on {label}: {reason}"
                )


def _probes(ir: IR) -> Iterator[tuple[str, list[Any]]]:
    """Yield labelled inputs, smallest sizes first, where shapes are most likely wrong."""
    points = sorted(points_of(ir), key=lambda point: sum(point.values()))[:_POINTS] or [{}]
    for seed, point in enumerate(points):
        at = " at " + ", ".join(f"{name}={size}" for name, size in point.items()) if point else ""
        drawn = drawn_inputs(ir, point, seed)
        yield f"random inputs{at}", drawn
        yield f"rounded inputs{at}", [_rounded(value) for value in drawn]


def _rounded(value: Any) -> Any:
    """Round to integers, which yields zeros and ties."""
    return value.round() if isinstance(value, Tensor) and value.is_floating_point() else value


def _copies(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def _ran(executor: IRExecutor, values: Sequence[Any]) -> list[Any]:
    torch.manual_seed(0)
    outcome = executor.run(_copies(values))
    return [*outcome.outputs, *outcome.mutations.values()]


def _seeded(run: Callable[[Sequence[Any]], Sequence[Any]], values: Sequence[Any]) -> Sequence[Any]:
    torch.manual_seed(0)
    return run(_copies(values))


def _in_float64(ir: IR, weights: Mapping[str, Weight], values: Sequence[Any]) -> list[Any] | None:
    """Return the results in float64; None if an operator does not support it."""
    try:
        wide = {key: _widened(loaded(weight)) for key, weight in weights.items()}
        return _ran(IRExecutor(retyped(ir, "float64"), wide), [*map(_widened, values)])
    except ExecutionError:
        return None


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _is_rounding(wanted: Any, got: Any, exact: Any) -> bool:
    """Whether two results differ by no more than the executor's own error in this dtype."""
    if not isinstance(wanted, Tensor) or not isinstance(got, Tensor) or not wanted.is_floating_point():
        return False
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        return False
    finite = wanted.isfinite()
    if not torch.equal(finite, got.isfinite()) or compare(wanted[~finite], got[~finite]).reason:
        return False
    ours = wanted[finite].double()
    gap, allowed = (ours - got[finite].double()).abs().max(), _UNITS * torch.finfo(wanted.dtype).eps * ours.abs().max()
    if isinstance(exact, Tensor) and exact.shape == wanted.shape and bool(exact[finite].isfinite().all()):
        allowed = max(allowed, _NEARER * (ours - exact[finite]).abs().max())
    return bool(gap <= allowed)
