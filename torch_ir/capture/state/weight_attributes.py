"""Python attributes that a user's code sets on weights, for the tensors that take their place during a capture.

Those of inputs are refused where forward reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from torch_ir.capture.program.provenance import source_line
from torch_ir.capture.state.reached_code import assigned_elsewhere, functions_of, strings_in
from torch_ir.capture.state.side_effects import note_change
from torch_ir.capture.walk import modules, weights
from torch_ir.errors import ConversionError, ExportError


class WeightAttributes:
    """The attributes that stand-ins of weights were given; `changed` yields those that forward has changed."""

    def __init__(self) -> None:
        self._given: list[tuple[str, torch.Tensor, set[str], dict[str, Any]]] = []

    def give(self, key: str, weight: torch.Tensor, stand_in: torch.Tensor) -> None:
        own = set(vars(stand_in))  # which torch, or the capture itself, may change
        given = {name: value for name, value in vars(weight).items() if name not in own}
        vars(stand_in).update(given)
        self._given.append((key, stand_in, own, given))

    def changed(self) -> Iterator[str]:
        for key, stand_in, own, given in self._given:
            if len(vars(stand_in)) == len(own) and not given:
                continue
            now = {name: value for name, value in vars(stand_in).items() if name not in own}
            for name in {**given, **now}:
                if now.get(name, now) is not given.get(name, given) and not name.startswith("_"):
                    yield f"{key}.{name}"


def refuse_attributes(model: nn.Module) -> None:
    """Refuse a model whose code reads an attribute of a weight, for a tracer that shows it another tensor."""
    held = {name: weight for weight in weights(model) for name in _own(weight.tensor)}
    if found := _read(model, held):
        key = held[found].key
        raise ConversionError(f"forward may read {found!r}, a Python attribute of {key!r}, which torch.export hides")


def refuse_attributes_of_inputs(model: nn.Module, inputs: Iterable[Any]) -> None:
    """Refuse a model whose code reads an attribute of an input: the inputs of a graph have values only."""
    plain = [leaf for leaf in inputs if type(leaf) in (torch.Tensor, nn.Parameter)]
    if found := _read(model, {name for tensor in plain for name in vars(tensor) if not name.startswith("__")}):
        raise ExportError(
            f"forward may read {found!r}, a Python attribute of an input, which the inputs of a graph do not have; "
            "pass it as an argument of forward"
        )


def _own(tensor: torch.Tensor) -> list[str]:
    """Return the attributes that a user has set on a tensor."""
    return [name for name in vars(tensor) if not name.startswith("_")]


def _read(model: nn.Module, names: Collection[str]) -> str:
    """Return the first of these names that the code of a model uses; empty if it uses none."""
    if not names:
        return ""
    kinds = dict.fromkeys(map(type, modules(model)))
    used = {name for kind in kinds for function in functions_of(kind) for name in strings_in(function.__code__)}
    return min(used.intersection(names), default="")


@contextmanager
def assigned_attributes_noted(model: nn.Module, *, in_strict_mode: bool) -> Iterator[None]:
    """Notify an observer of attributes that forward assigns to weights, in whose place a tracer has other tensors.

    In strict mode, forward is not executed in Python: every line that assigns an attribute to another object than
    `self` may do so.
    """
    kinds = dict.fromkeys(map(type, modules(model)))
    codes = dict.fromkeys(function.__code__ for kind in kinds for function in functions_of(kind))
    lines: dict[str, list[str]] = {}
    for code in codes:
        for name, line in assigned_elsewhere(code):
            lines.setdefault(name, []).append(f"{name} at {source_line(code.co_filename, line)}")

    def note(names: Iterable[str]) -> None:
        for name in names:
            for line in lines[name]:
                note_change(line)

    def look(*_: Any) -> None:
        note({name for weight in weights(model) for name in vars(weight.tensor) if name in lines})

    if in_strict_mode:
        note(lines)
    with model.register_forward_hook(look) if lines and not in_strict_mode else nullcontext():
        yield
