"""Compare a compiled graph with the executor on random and rounded inputs at several sizes.

By default, `compile` does so where a graph has operators in dtypes that the sweep did not compare with eager.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_ir.analysis.shapes.open_sizes import points_of
from torch_ir.backends.deviations import may_deviate
from torch_ir.backends.swept import is_elsewhere, other_version, unswept
from torch_ir.errors import BackendWarning, ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ops.effects import is_random
from torch_ir.ops.prepare_run import with_calls_inline
from torch_ir.passes.random_check import bound, drawn_inputs, retyped
from torch_ir.passes.rounding import QUANTIZE, Rounding, widened
from torch_ir.run.executor import IRExecutor
from torch_ir.run.seeding import seed_generators
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.tolerances import compare

_log = logging.getLogger(__name__)
_POINTS = 3  # choices of symbolic sizes
_UNITS = 16  # allowed error in units of the dtype's precision at the largest element
_NEARER = 8  # allowed error as a multiple of the executor's own error
_NEAR_ZERO = 2.0**-18  # of random inputs; their squares are no less than a usual epsilon
_EXACT = 1e-6  # absolute tolerance of results near zero: runtimes compute expm1(x) as exp(x) - 1
_NO_NAN = 0.1  # of results for zeros
Run = Callable[[Sequence[Any]], Sequence[Any]]


class CannotCompareError(ExecutionError):
    """The executor does not run the graph on random inputs, or random numbers decide its results."""


class DifferenceError(ExecutionError):
    """The results of a back end differ in a tensor; `found` says on which inputs, and by how much."""

    def __init__(self, text: str, tensor: TensorMeta, found: str) -> None:
        super().__init__(f"{text}{tensor.name!r} {found}")
        self.tensor, self.found = tensor, found


def verify(
    name: str,
    run: Run,
    ir: IR,
    weights: Mapping[str, Weight],
    *,
    points: int = _POINTS,
    ties: bool = True,
    small: bool = False,
) -> None:
    """Raise DifferenceError if a back end's results differ from the executor's by more than rounding.

    `run` takes the inputs of the graph and returns its outputs and the new values of changed tensors. The weights are
    on the device of the graph. Symbolic sizes are tried at so many points, and without `ties` only on random inputs;
    with `small`, also on inputs near zero, and on zeros, where a norm amplifies rounding but an epsilon prevents NaN.
    """
    draws = any(map(is_random, with_calls_inline(ir).all_nodes()))
    quantizes = any(node.op_type.startswith(QUANTIZE) for node in ir.all_nodes())
    for label, values, atol in _probes(ir, points, ties, small, again=quantizes):
        try:
            wanted = _ran(IRExecutor(ir, weights), values)  # a new one, as an executor keeps its state
        except ExecutionError as error:
            raise CannotCompareError(f"the executor does not run {label}: {error}") from error
        got = _seeded(run, values)
        pairs = [*enumerate(zip(wanted, got, strict=True))]
        found = {index: reason for index, pair in pairs if (reason := compare(*pair, atol=atol).reason)}
        if found and quantizes and not draws:
            rounding = Rounding(ir, _loaded(weights), lambda: retyped(ir, "float64"), bound)
            place, _, why = rounding.objection(values, wanted, got, _ran).partition(": ")
            found = {int(place): why} if why else {}
        elif found:
            exact = None if draws else _in_float64(ir, weights, values)  # random numbers differ in float64
            true = exact or [None] * len(wanted)
            found = {index: why for index, why in found.items() if not _is_rounding(*pairs[index][1], true[index])}
        if found and draws:
            raise CannotCompareError("the graph draws random numbers")
        for index, reason in found.items():
            text = f"{name} does not compute {ir.model_name or 'the graph'} as the executor does: "
            raise DifferenceError(text, ir.returns.inputs[index], f"on {label}: {reason}")


def verify_unswept(name: str, run: Run, compiled: IR, ir: IR, weights: Mapping[str, Weight]) -> None:
    """Compare a back end with the executor if the compiled graph has operators in dtypes that were never compared.

    This is cheaper than `verify`: two choices of open sizes, and no equal elements where the back end is known to order
    them differently. The executor does not run on a GPU here, where it may need as much memory again.
    """
    lacking = unswept(compiled, name)
    if not lacking:
        return
    if is_elsewhere(compiled):
        _warn_once(f"{name} was never compared with torch on a GPU; with verify=True, this graph is compared")
        return
    if version := other_version(name):
        _warn_once(f"{version}; each compiled graph is compared with the executor unless verify=False")
    else:
        _log.info("%s was never compared with torch in %s; comparing the graph now", name, ", ".join(lacking))
    try:
        verify(name, run, ir, weights, points=2, ties=not may_deviate(compiled, name))
    except CannotCompareError as error:
        text = f"{name} was never compared with torch in {', '.join(lacking)}, and cannot be here: {error}"
        warnings.warn(text, BackendWarning, stacklevel=3)


@cache
def _warn_once(text: str) -> None:
    warnings.warn(text, BackendWarning, stacklevel=4)


def _probes(ir: IR, points: int, ties: bool, small: bool, again: bool) -> Iterator[tuple[str, list[Any], float | None]]:
    """Yield labelled inputs on the graph's device, smallest sizes first; with `again`, so many in any case.

    The number is an absolute tolerance; None for one that depends on the results.
    """
    chosen = sorted(points_of(ir), key=lambda point: sum(point.values()))[:points] or [{}]
    for seed, point in enumerate((chosen * points)[:points] if again else chosen):
        at = " at " + ", ".join(f"{name}={size}" for name, size in point.items()) if point else ""
        drawn = [v.to(ir.device) if isinstance(v, Tensor) else v for v in drawn_inputs(ir, point, seed)]
        yield f"random inputs{at}", drawn, None
        if ties:
            yield f"rounded inputs{at}", [_changed(value, torch.round) for value in drawn], None
        if small:
            yield f"inputs near zero{at}", [_changed(value, lambda x: x * _NEAR_ZERO) for value in drawn], _EXACT
        if small and ties:
            yield f"zeros{at}", [_changed(value, torch.zeros_like) for value in drawn], _NO_NAN


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change floating-point numbers; rounded to integers, they have zeros and ties."""
    return change(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def _copies(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def _ran(executor: IRExecutor, values: Sequence[Any]) -> list[Any]:
    seed_generators(0)
    outcome = executor.run(_copies(values))
    return [*outcome.outputs, *outcome.mutations.values()]


def _seeded(run: Run, values: Sequence[Any]) -> Sequence[Any]:
    seed_generators(0)
    return run(_copies(values))


def _in_float64(ir: IR, weights: Mapping[str, Weight], values: Sequence[Any]) -> list[Any] | None:
    """Return the results in float64; None if an operator does not support it."""
    try:
        return _ran(bound(retyped(ir, "float64"), _loaded(weights)), [*map(widened, values)])
    except ExecutionError:
        return None


def _loaded(weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    return {key: loaded(weight) for key, weight in weights.items()}


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
