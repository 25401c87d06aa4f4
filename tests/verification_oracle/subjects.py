"""The models by name: how each is built and called, the same in every process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import catalogue
from tests import hard_models
from tests.mutations.subjects import cropped
from tests.proof import quiet
from tests.random_models.model import built
from tests.random_models.recipe import drawn
from tests.verification_oracle import stateful

Call = tuple[tuple[Any, ...], dict[str, Any]]
RANDOM = 60  # random models of the full sweep
# Compiled or foreign code whose state this process cannot read from outside; captured by value only.
_LEFT_OUT = frozenset(("hard.Enormous", "hard.PickedByChance"))


@dataclass(frozen=True)
class Subject:
    """A model with weights, the call of the verification, and another one for the oracle."""

    name: str
    model: nn.Module
    calls: tuple[Call, Call]
    dynamic_shapes: Any = None


def names() -> list[str]:
    """Return every model, by its list and its name."""
    found = [
        *(f"state.{name}" for name in stateful.MODELS),
        *(f"catalogue.{entry.name}" for entry in catalogue.entries()),
        *(f"hard.{name}" for name in hard_models.cases()),
        *(f"random.{seed}" for seed in range(RANDOM)),
    ]
    return [name for name in found if name not in _LEFT_OUT]


def find(name: str) -> Subject:
    """Build a model; weights and inputs are the same every time."""
    kind, _, rest = name.partition(".")
    torch.manual_seed(0)
    if kind == "state":
        return _subject(name, stateful.build(rest), (stateful.X, stateful.Y), {})
    if kind == "catalogue":
        entry = catalogue.find(rest)
        model = entry.build()
        return _subject(name, model, cropped(entry.inputs()), entry.kwargs())
    if kind == "hard":
        case = hard_models.cases()[rest]
        return _subject(name, case.model().eval(), case.args, case.kwargs)
    with quiet():
        made = built(drawn(int(rest)))
    return Subject(name, made.model, (made.call(0), made.call(1)), made.dynamic_shapes)


def _subject(name: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Subject:
    generator = torch.Generator().manual_seed(3)
    other = pytree.tree_map_only(Tensor, lambda value: _shuffled(value, generator), (args, kwargs))
    return Subject(name, model, ((args, kwargs), other))


def _shuffled(value: Tensor, generator: torch.Generator) -> Tensor:
    """The same elements in other places; integers, which may be indices in order, stay as they are."""
    if not value.is_floating_point() or value.layout != torch.strided or value.numel() < 2:
        return value
    return value.flatten()[torch.randperm(value.numel(), generator=generator)].reshape(value.shape)


def batches(chosen: list[str], size: int) -> Iterator[list[str]]:
    """The names in groups."""
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]
