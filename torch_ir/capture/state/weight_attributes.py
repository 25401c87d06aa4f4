"""Python attributes that a user's code sets on weights, for the tensors that take their place during a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_ir.capture.instrument import intercepted
from torch_ir.capture.program.provenance import calling_line
from torch_ir.capture.state.reached_code import functions_of, strings_in
from torch_ir.capture.state.side_effects import note_change
from torch_ir.capture.walk import modules, weights
from torch_ir.errors import ConversionError


class WeightAttributes:
    """The attributes that stand-ins of weights were given; `changed` yields those that forward has changed."""

    def __init__(self) -> None:
        self._given: list[tuple[str, dict[str, Any], dict[str, Any]]] = []  # key, attributes of the stand-in, a copy

    def give(self, key: str, weight: torch.Tensor, stand_in: torch.Tensor) -> None:
        attributes = vars(stand_in)
        attributes.update({name: value for name, value in vars(weight).items() if name not in attributes})
        self._given.append((key, attributes, attributes.copy()))

    def changed(self) -> Iterator[str]:
        for key, now, before in self._given:
            if len(now) != len(before) or any(now.get(name, now) is not value for name, value in before.items()):
                names = [name for name in {**before, **now} if now.get(name, now) is not before.get(name, before)]
                yield from (f"{key}.{name}" for name in names if not name.startswith("_"))


def refuse_attributes(model: nn.Module) -> None:
    """Refuse a model whose code reads an attribute of a weight, for a tracer that shows it another tensor."""
    held = {name: weight for weight in weights(model) for name in vars(weight.tensor) if not name.startswith("_")}
    if held:
        kinds = dict.fromkeys(map(type, modules(model)))
        read = {name for kind in kinds for function in functions_of(kind) for name in strings_in(function.__code__)}
        if found := sorted(read & held.keys()):
            key = held[found[0]].key
            raise ConversionError(
                f"forward may read {found[0]!r}, a Python attribute of {key!r}, which torch.export hides"
            )


@contextmanager
def attributes_noted() -> Iterator[None]:
    """Notice attributes that the user's code sets on tensors, for a tracer that shows it other tensors."""

    def note(assign: Callable[..., None], tensor: torch.Tensor, name: str, value: Any) -> None:
        assign(tensor, name, value)
        if name not in _SETTINGS and (line := calling_line(2)):
            note_change(f"{name} of a tensor at {line}")

    with intercepted(torch.Tensor, "__setattr__", note):
        yield


_SETTINGS = frozenset(("data", "grad", "requires_grad", "names"))  # attributes that are torch's own
