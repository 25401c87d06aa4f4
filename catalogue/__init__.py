"""Models in plain torch, one file each: the test list, the benchmark list and the documentation at once."""

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

CATEGORIES = (
    *("mlp", "cnn", "residual", "attention", "encoder", "decoder", "rnn", "multi_io", "shared", "skip", "embedding"),
    *("detection", "moe", "generative", "state", "control", "graph", "misc"),
)

Make = TypeVar("Make", bound=Callable[[], nn.Module])


@dataclass(frozen=True)
class Entry:
    """One model: how to build it (in eval mode), what to feed it, and what it shows.

    `build` works on any default device, `torch.device("meta")` included; `inputs` and `kwargs` give real CPU tensors,
    random ones drawn from torch's global generator, so a caller who wants them again seeds it.
    """

    name: str
    category: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = dict
    about: str = ""


class UnknownNameError(KeyError):
    """A model or category that the catalogue does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


_registered: dict[str, Entry] = {}


def entry(
    category: str, inputs: Callable[[], tuple[Any, ...]], kwargs: Callable[[], dict[str, Any]] = dict
) -> Callable[[Make], Make]:
    """Make the decorated class, or function without arguments, the model of the file that it stands in."""
    if category not in CATEGORIES:
        raise _unknown("category", category, CATEGORIES)

    def register(make: Make) -> Make:
        name = make.__module__.rpartition(".")[2]
        if name in _registered:
            raise ValueError(f"catalogue file {name!r} already has a model")
        about = (sys.modules[make.__module__].__doc__ or "").partition("\n")[0]
        _registered[name] = Entry(name, category, lambda: make().eval(), inputs, kwargs, about)
        return make

    return register


def entries() -> list[Entry]:
    """Every model of the catalogue, sorted by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return [_registered[name] for name in sorted(_registered)]


def categories() -> dict[str, list[Entry]]:
    """The models of each category, in the order of `CATEGORIES`."""
    every = entries()
    return {category: [e for e in every if e.category == category] for category in CATEGORIES}


def find(name: str) -> Entry:
    """The model of this name."""
    by_name = {e.name: e for e in entries()}
    if name not in by_name:
        raise _unknown("model", name, by_name)
    return by_name[name]


def find_category(name: str) -> list[Entry]:
    """The models of this category."""
    by_name = categories()
    if name not in by_name:
        raise _unknown("category", name, by_name)
    return by_name[name]


def _unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UnknownNameError(f"unknown {kind} {name!r}{hint}")
