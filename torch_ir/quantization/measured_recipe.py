"""Choose a recipe within a budget by running it: the mix that sensitivity suggests, or one scheme for all layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch_ir.errors import QuantizationError
from torch_ir.ir import IR, Limits
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.quantization.layer_choices import Ranges
from torch_ir.quantization.layer_sensitivity import Movement, Sensitivity, movement
from torch_ir.quantization.quantize_graph import quantize
from torch_ir.quantization.recipe import Recipe
from torch_ir.quantization.report import QuantizationReport
from torch_ir.run.weight_files import WeightSource


@dataclass(frozen=True)
class ChosenRecipe:
    """A recipe, what it saves, how far the outputs move, and whether it is one scheme for all layers."""

    recipe: Recipe
    report: QuantizationReport
    movement: Movement
    is_uniform: bool


def choose_recipe(
    ir: IR,
    weights: WeightSource,
    inputs: Iterable[Any],
    found: Sensitivity,
    budget: int,
    *,
    ranges: Ranges | None = None,
    limits: Limits = Limits(),
) -> ChosenRecipe:
    """Return the best of the recipes whose weights take at most `budget` bytes, each run on the inputs.

    The candidates are `found.recipe(budget)`, for which the noise of layers is assumed to add up, and each scheme of
    `found` for all layers, if it fits. So the result is never worse on these inputs than a scheme for all layers.
    """
    require_graph(ir, "choose_recipe")
    values = list(inputs)
    if not values:
        raise QuantizationError("choose_recipe needs at least one input")
    best: ChosenRecipe | None = None
    for recipe, is_uniform in _candidates(found, budget):
        quantized, report = quantize(ir, recipe, ranges=ranges)
        if report.bytes_after > budget:
            continue
        chosen = ChosenRecipe(recipe, report, movement(ir, quantized, weights, values, limits=limits), is_uniform)
        if best is None or chosen.movement.noise < best.movement.noise:
            best = chosen
    if best is None:
        raise QuantizationError(f"no recipe takes at most {budget} bytes")
    return best


def _candidates(found: Sensitivity, budget: int) -> Iterator[tuple[Recipe, bool]]:
    yield found.recipe(budget), False
    for scheme in dict.fromkeys(row.scheme for row in found.rows):
        yield Recipe.of(scheme), True
