"""A recipe as a model: built twice, with and without weights, and called by its signature."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.random_models.recipe import BATCHES, Draft, Placed, Recipe, tensors_for, tensors_in
from torch_ir import meta_init

_LAST = 4  # tensors that a model returns at most
_NAMES = ("first", "second", "third")

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Outputs:
    """An output class of some models."""

    first: Any
    rest: Any


class Pair(NamedTuple):
    first: Any
    rest: Any


torch.export.register_dataclass(Outputs, serialized_type_name="tests.random_models.Outputs")


class RandomModel(nn.Module):
    """Steps that read earlier tensors; unread ones and the last one are returned."""

    def __init__(self, placed: Sequence[Placed], inputs: int, result: str) -> None:
        super().__init__()
        self.reads = [step.reads for step in placed]
        self.bodies = [step.make() for step in placed]
        for index, (step, body) in enumerate(zip(placed, self.bodies, strict=True)):
            if isinstance(body, nn.Module):
                self.add_module(f"{step.name}_{index}", body)
        self.inputs, self.result = inputs, result

    def forward(
        self, first: Any, second: Any = None, third: Any = None, *, scale: float = 1.0, absent: Any = None
    ) -> Any:
        pool = tensors_in((first, second, third))
        for reads, body in zip(self.reads, self.bodies, strict=True):
            pool += tensors_in(body(*(pool[read] for read in reads)))
        made = pool[self.inputs :][-_LAST:] or pool
        if absent is None and scale != 1.0:
            made[-1] = made[-1] * scale
        return _nested(self.result, made)


def _nested(kind: str, made: list[Tensor]) -> Any:
    first, rest = made[-1], made[:-1]
    return {
        "last": lambda: first,
        "tuple": lambda: tuple(made),
        "list": lambda: list(made),
        "dict": lambda: {f"out_{index}": x for index, x in enumerate(made)},
        "dataclass": lambda: Outputs(first, rest),
        "named tuple": lambda: Pair(first, tuple(rest)),
        "nested": lambda: {"a": (first, [*rest]), "b": {"size": first.dim(), "none": None, "same": first}},
    }[kind]()


class Built(NamedTuple):
    """A model with weights, the same without them, and how it is called."""

    recipe: Recipe
    model: nn.Module
    bare: nn.Module
    used: tuple[str, ...]  # the blocks that fit

    def call(self, number: int = 0, batch: int = BATCHES[0]) -> Call:
        return arranged(self.recipe, tensors_for(self.recipe, batch, number))

    @property
    def dynamic_shapes(self) -> Any:
        """For `torch.export`: every `batch` is one size that may vary."""
        if not self.recipe.is_dynamic:
            return None
        dim = Dim("batch", min=2, max=64)
        shapes = [_open_dims(text, dim) for text in self.recipe.inputs]
        args, kwargs = arranged(self.recipe, shapes)
        settings = {name: None for name in kwargs if name in ("scale", "absent")}
        return {**dict(zip(_NAMES, args, strict=False)), **kwargs, **settings}


def _open_dims(text: str, dim: Any) -> dict[int, Any]:
    sizes = text.partition("[")[2].rstrip("]").split(", ")
    return {index: dim for index, size in enumerate(sizes) if size == "batch"}


def arranged(recipe: Recipe, values: Sequence[Any]) -> Call:
    """Return inputs in the form that the model of this recipe takes."""
    first, *others = values
    if recipe.call == "tuple":
        return ((first, tuple(others)),), {}
    if recipe.call == "dict":
        return ({"a": first, "b": list(others)},), {}
    if recipe.call == "keywords":
        return (first,), {"scale": 0.5, "absent": None, **dict(zip(_NAMES[1:], others, strict=False))}
    return (first, *others), {}


def built(recipe: Recipe) -> Built:
    """The model of a recipe; steps that do not fit are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draft = Draft(recipe)
        for step in recipe.steps:
            draft.place(*step)
        model = RandomModel(draft.placed, len(recipe.inputs), recipe.result).train(recipe.training)
        model.requires_grad_(False)  # with gradients, torch picks other kernels
        with meta_init():
            bare = RandomModel(draft.placed, len(recipe.inputs), recipe.result).train(recipe.training)
    return Built(recipe, model, bare, tuple(step.name for step in draft.placed))
