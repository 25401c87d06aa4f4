"""A form: a small model of one kind, with calls that cover each of its paths."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from tests.proof import module

Build = TypeVar("Build", bound=Callable[..., Any])
# The stage that a form reaches: its library has no kernels here, torch.export refuses it, it cannot be converted,
# the graph does not verify, or all stages succeed.
STAGES = UNBUILT, REFUSED, CAPTURED, CARRIED, VERIFIED = "not built", "refused", "captured", "converted", "verified"


@dataclass(frozen=True)
class Outcome:
    """The stage that a form reaches, and the reason."""

    stage: str
    reason: str = ""


def unbuilt(reason: str) -> Outcome:
    return Outcome(UNBUILT, reason)


def refused(reason: str) -> Outcome:
    return Outcome(REFUSED, reason)


def captured(reason: str) -> Outcome:
    return Outcome(CAPTURED, reason)


def carried(reason: str) -> Outcome:
    return Outcome(CARRIED, reason)


@dataclass(frozen=True)
class Form:
    """A named model, the inputs of its calls, and the expected stage."""

    name: str
    family: str
    make: Callable[[], nn.Module]
    calls: tuple[tuple[Any, ...], ...]
    dynamic_shapes: Any
    on_meta: bool
    strict_export: bool
    expected: Outcome

    def build(self) -> nn.Module:
        """The model, the same one every time."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return self.make()

    def inputs(self) -> list[tuple[Any, ...]]:
        """The inputs of each call, fresh: a model may write to them."""
        return [copy.deepcopy(inputs) for inputs in self.calls]


@dataclass
class Family:
    """Forms of one kind, in the order of their file."""

    name: str
    forms: dict[str, Form] = field(default_factory=dict)

    def model(self, *calls: tuple[Any, ...], **options: Any) -> Callable[[Build], Build]:
        """Decorate a function that builds the model."""

        def keep(make: Build) -> Build:
            self.add(make.__name__, make, calls, **options)
            return make

        return keep

    def forward(
        self, *calls: tuple[Any, ...], parts: Callable[[], dict[str, Any]] = dict, train: bool = False, **options: Any
    ) -> Callable[[Build], Build]:
        """Register the `forward` of a model that consists of `parts`."""

        def keep(forward: Build) -> Build:
            self.add(forward.__name__, lambda: module(forward, **parts()).train(train), calls, **options)
            return forward

        return keep

    def add(
        self,
        name: str,
        make: Callable[[], nn.Module],
        calls: tuple[tuple[Any, ...], ...],
        *,
        dynamic_shapes: Any = None,
        on_meta: bool = True,
        strict_export: bool = False,
        expected: Outcome = Outcome(VERIFIED),
    ) -> None:
        """Add a model by name; it is real where `on_meta` is off, and captured by Dynamo with `strict_export`."""
        assert name not in self.forms, f"{self.name} has two forms called {name}"
        assert calls, f"{name} is never called"
        self.forms[name] = Form(name, self.name, make, calls, dynamic_shapes, on_meta, strict_export, expected)
