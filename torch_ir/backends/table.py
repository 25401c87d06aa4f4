"""The table of back ends: a name, what runs, what it needs, and how it makes a graph ready."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torch_ir.errors import CommandError, MissingExtraError, RegistryError, TorchIRError, did_you_mean
from torch_ir.ir import IR

Run = Callable[[Sequence[Any]], Sequence[Any]]  # the inputs of a graph in order -> its outputs in order
Prepare = Callable[[IR, Mapping[str, Tensor]], Run]


@dataclass(frozen=True)
class Backend:
    """A way to numbers. `prepare` is given a graph that changes nothing but its outputs, and all of its weights."""

    name: str
    summary: str
    prepare: Prepare
    require: Callable[[], None]  # raises, in one sentence, where something that it needs is missing
    races: bool  # whether it can be the fastest, so that `auto` tries it


_BACKENDS: dict[str, Backend] = {}


def register_backend(
    name: str, summary: str, *, require: Callable[[], None] = lambda: None, races: bool = True
) -> Callable[[Prepare], Prepare]:
    """Register what makes graphs ready to run under a name: `@register_backend("mine", "my NPU's simulator")`."""

    def register(prepare: Prepare) -> Prepare:
        held = _BACKENDS.get(name)
        if held is not None and held.prepare is not prepare:
            raise RegistryError(f"the back end {name!r} is already {held.prepare.__module__}.{held.prepare.__name__}")
        _BACKENDS[name] = Backend(name, summary, prepare, require, races)
        return prepare

    return register


def list_backends() -> dict[str, Backend]:
    """Every back end by name, installed or not."""
    return dict(_BACKENDS)


def find_backend(name: str) -> Backend:
    """A back end that can run here; one sentence says what is missing where it cannot."""
    if name not in _BACKENDS:
        hint = did_you_mean(name, _BACKENDS) or f"; there are {', '.join(_BACKENDS)}"
        raise CommandError(f"there is no back end {name!r}{hint}")
    _BACKENDS[name].require()
    return _BACKENDS[name]


def installed_backends() -> dict[str, Backend]:
    """The back ends that can run here."""
    return {name: found for name, found in _BACKENDS.items() if _is_installed(found)}


def _is_installed(found: Backend) -> bool:
    try:
        found.require()
    except TorchIRError:
        return False
    return True


def packages(purpose: str, extra: str, *names: str) -> Callable[[], None]:
    """A check that these packages are installed, which come with an extra."""

    def require() -> None:
        for name in names:
            if importlib.util.find_spec(name) is None:
                raise MissingExtraError(purpose, name, extra)

    return require
