"""Random models in other engines: results are close to the model's, or the reason is known."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import torch_ir
from tests.proof import quiet
from tests.random_models.block import BLOCKS
from tests.random_models.model import Built, built
from tests.random_models.properties import captured, eager
from tests.random_models.recipe import Recipe, tensors_in
from torch_ir import IR, IRExecutor, TorchIRError
from torch_ir.errors import first_line
from torch_ir.passes.random_check import retyped
from torch_ir.run.executor import flatten_call
from torch_ir.run.tolerances import compare

_NEARER = 8  # times as far off as the model itself is, or as it moves when its inputs do
_TREMBLE = 1e-6  # relative, of inputs and weights

# Differences of engines from torch; models with such a block are not run in them.
KNOWN: dict[str, dict[str, str]] = {"onnxruntime": {"pool_with_indices": "its pools pass over NaN"}}


@dataclass(frozen=True)
class Compared:
    """Result of an engine: `same` within the tolerance, `rounding` according to float64, `refused`, or `apart`."""

    kind: str
    detail: str = ""


def blocks_for(engine: str) -> list[str]:
    """The blocks that an engine is tried with."""
    return [name for name in BLOCKS if name not in KNOWN.get(engine, {})]


def compared(recipe: Recipe, engine: str) -> Compared:
    """Run a model eagerly and in an engine, on the same inputs."""
    with torch.random.fork_rng(devices=[]), quiet():
        made = built(recipe)
        ir = captured(made)
        weights = made.model.state_dict()
        args, kwargs = made.call()
        try:
            run = torch_ir.compile(ir, weights, backend=engine)
            torch.default_generator.manual_seed(0)
            got = tensors_in(run(*args, **kwargs))
        except TorchIRError as error:
            return Compared("refused", first_line(error))
        wanted = tensors_in(eager(made, copy.deepcopy(made.model), made.call()))
        reasons = [compare(one, other).reason for one, other in zip(wanted, got, strict=True)]
        if not any(reasons):
            return Compared("same")
        if _is_rounding(made, ir, wanted, got):
            return Compared("rounding", "; ".join(filter(None, reasons)))
        return Compared("apart", "; ".join(f"result {i}: {reason}" for i, reason in enumerate(reasons) if reason))


def _is_rounding(made: Built, ir: IR, wanted: Sequence[Tensor], got: Sequence[Tensor]) -> bool:
    """Whether the model in float64, or on inputs that differ by a rounding, is as far away as the engine is."""
    others = [_trembling(made, ir, seed) for seed in range(3)]
    if (exact := _exact(made, ir)) is not None:
        others.append(exact)
    return all(
        is_near(one, other, [run[index] for run in others])
        for index, (one, other) in enumerate(zip(wanted, got, strict=True))
    )


def _exact(made: Built, ir: IR) -> list[Tensor] | None:
    try:
        return _run(retyped(ir, "float64"), made, torch.Tensor.double)
    except TorchIRError:  # an operator that insists on another dtype
        return None


def _trembling(made: Built, ir: IR, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def moved(x: Tensor) -> Tensor:
        return x * (1 + _TREMBLE * torch.randn(x.shape, generator=generator).to(x.dtype))

    return _run(ir, made, moved)


def _run(ir: IR, made: Built, change: Any) -> list[Tensor]:
    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    executor = IRExecutor(ir, _changed_weights(made.model.state_dict(), changed))
    torch.default_generator.manual_seed(0)
    return list(executor.run([changed(value) for value in flatten_call(ir, *made.call())]).outputs)


def _changed_weights(weights: Mapping[str, Tensor], changed: Callable[[Any], Any]) -> dict[str, Tensor]:
    """Weights that are tied are changed together."""
    known: dict[tuple[int, torch.Size], Tensor] = {}
    return {
        key: known.setdefault((value.data_ptr(), value.shape), changed(value)) if value.numel() else changed(value)
        for key, value in weights.items()
    }


def is_near(wanted: Tensor, got: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a result is as close to the expected one as rounding allows."""
    if not compare(wanted, got).reason:
        return True
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return False
    if not wanted.is_floating_point():
        return any(not torch.equal(wanted, other) for other in others)
    finite = wanted.isfinite() & got.isfinite()
    if not torch.equal(finite, wanted.isfinite()) or not torch.equal(finite, got.isfinite()):
        return any(not torch.equal(wanted.isfinite(), other.isfinite()) for other in others)
    gap = (wanted.double() - got.double())[finite].abs().max()
    moves = max(float((wanted.double() - other.double())[finite].abs().max()) for other in others)
    return bool(gap <= _NEARER * moves)
