"""Pieces of models with state: modules from a float tensor of 4 by 4 to another, registered by class of state."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

SIZE = 4
PIECES: dict[str, dict[str, type[nn.Module]]] = {}  # class of state -> name -> module


def piece(group: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a module under the name of its class."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        assert all(kind.__name__ not in kinds for kinds in PIECES.values()), f"two pieces are called {kind.__name__}"
        PIECES.setdefault(group, {})[kind.__name__] = kind
        return kind

    return register


def kind_of(name: str) -> type[nn.Module]:
    return next(kinds[name] for kinds in PIECES.values() if name in kinds)


def group_of(name: str) -> str:
    return next(group for group, kinds in PIECES.items() if name in kinds)
