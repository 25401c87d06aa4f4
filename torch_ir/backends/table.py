"""The table of back ends."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torch_ir.backends.split_guards import split_guards
from torch_ir.errors import CommandError, MissingExtraError, RegistryError, TorchIRError, did_you_mean
from torch_ir.ir import IR
from torch_ir.run.executor import IRExecutor

Run = Callable[[Sequence[Any]], Sequence[Any]]  # inputs in order -> outputs in order
Prepare = Callable[[IR, Mapping[str, Tensor]], Run]


@dataclass(frozen=True)
class Backend:
    """A back end; `prepare` compiles a stateless graph with all of its weights.

    With `in_place`, the graph may change inputs (`ir.mutations`), and its run writes to them; otherwise it never does.
    With `checks_guards`, its run checks the guards of the graph; otherwise the graph that it gets has none.
    """

    name: str
    summary: str
    prepare: Prepare
    require: Callable[[], None]  # raises an error if a requirement is missing
    races: bool  # whether `auto` considers it
    in_place: bool = False
    checks_guards: bool = False

    def compile(self, ir: IR, weights: Mapping[str, Tensor]) -> Run:
        """Prepare a graph; the executor checks its guards before each call, unless the back end does."""
        if self.checks_guards:
            return self.prepare(ir, weights)
        graph, checks = split_guards(ir)
        run = self.prepare(graph, _read_by(graph, weights))
        if checks is None:
            return run
        guards = IRExecutor(checks, _read_by(checks, weights))

        def checked(values: Sequence[Any]) -> Sequence[Any]:
            guards.run(values)
            return run(values)

        return checked


def _read_by(ir: IR, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: weights[key] for param in ir.params if (key := param.key or param.name) in weights}


_BACKENDS: dict[str, Backend] = {}


def register_backend(
    name: str,
    summary: str,
    *,
    require: Callable[[], None] = lambda: None,
    races: bool = True,
    in_place: bool = False,
    checks_guards: bool = False,
) -> Callable[[Prepare], Prepare]:
    """Register the decorated `prepare` function: `@register_backend("mine", "my NPU's simulator")`."""

    def register(prepare: Prepare) -> Prepare:
        held = _BACKENDS.get(name)
        if held is not None and held.prepare is not prepare:
            place = f"{held.prepare.__module__}.{held.prepare.__name__}"
            raise RegistryError(f"back end {name!r} is already registered by {place}")
        _BACKENDS[name] = Backend(name, summary, prepare, require, races, in_place, checks_guards)
        return prepare

    return register


def list_backends() -> dict[str, Backend]:
    """Return all back ends by name, installed or not."""
    return dict(_BACKENDS)


def find_backend(name: str) -> Backend:
    """Return an installed back end; raise an error that names what is missing."""
    if name not in _BACKENDS:
        hint = did_you_mean(name, _BACKENDS) or f"; expected one of {', '.join(_BACKENDS)}"
        raise CommandError(f"unknown back end {name!r}{hint}")
    _BACKENDS[name].require()
    return _BACKENDS[name]


def installed_backends() -> dict[str, Backend]:
    """Return the back ends whose requirements are installed."""
    return {name: found for name, found in _BACKENDS.items() if _is_installed(found)}


def _is_installed(found: Backend) -> bool:
    try:
        found.require()
    except TorchIRError:
        return False
    return True


def packages(purpose: str, extra: str, *names: str) -> Callable[[], None]:
    """Return a check that these packages of an extra are installed."""

    def require() -> None:
        for name in names:
            if importlib.util.find_spec(name) is None:
                raise MissingExtraError(purpose, name, extra)

    return require
