"""Reduce a failing model: the fewest steps and the simplest settings that still fail in the same way."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.random_models.block import BLOCKS
from tests.random_models.model import built
from tests.random_models.recipe import Recipe

_PLAIN = Recipe(0, (), ())


def shrunk(recipe: Recipe, fails: Callable[[Recipe], bool]) -> Recipe:
    """The smallest recipe found; each thing that is left out is left out for good."""
    while (smaller := next(filter(fails, _smaller(recipe)), None)) is not None:
        recipe = smaller
    return recipe


def _smaller(recipe: Recipe) -> Iterator[Recipe]:
    count = len(recipe.steps)
    for size in (count // 2, 1):
        for start in range(0, count, size or 1):
            if 0 < size < count:
                yield replace(recipe, steps=recipe.steps[:start] + recipe.steps[start + size :])
    for name in ("call", "result", "on_meta", "training", "special"):
        if getattr(recipe, name) != getattr(_PLAIN, name):
            yield replace(recipe, **{name: getattr(_PLAIN, name)})
    if recipe.is_dynamic:
        yield replace(recipe, inputs=tuple(text.replace("batch", "3") for text in recipe.inputs))
    for index in range(1, len(recipe.inputs)):
        yield replace(recipe, inputs=recipe.inputs[:index] + recipe.inputs[index + 1 :])


def reproduction(recipe: Recipe) -> str:
    """Return a script that shows the failure, with its blocks."""
    names = dict.fromkeys(built(recipe).used)
    sources = [inspect.getsource(BLOCKS[name].make).rstrip() for name in names]
    told = "\n".join(f"# {line}".rstrip() for source in sources for line in source.splitlines())
    return (
        "import json\nfrom tests.random_models import Recipe, judged\n\n"
        f"print(judged(Recipe.of(json.loads({json.dumps(recipe.record())!r}))))\n{told}\n"
    )
