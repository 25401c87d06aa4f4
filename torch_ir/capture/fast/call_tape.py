"""What a run wrote down: values as numbers, calls as rules applied to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from torch_ir.capture.fast.rule_answers import Rule
from torch_ir.capture.fast.shape_tensors import Form, Ghost, Run, form_of
from torch_ir.ir import Origin


class Scope:
    """One call of a module, inside of another."""

    def __init__(self, module: str, call: int, kind: str, outside: Scope | None) -> None:
        self.module = module
        self.call = call
        self.kind = kind  # the full name of its class
        self.outside = outside

    def around(self) -> Iterator[Scope]:
        """This call and those that it is inside of, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outside

    def origin(self, line: str) -> Origin:
        outer = [f"{scope.module}@{scope.call}" for scope in self.around() if scope.call and scope is not self]
        return Origin(self.module, self.call, self.kind.rpartition(".")[2], line, tuple(reversed(outer)))


class Step(NamedTuple):
    """One call: its inputs and, from the first on, its outputs are values."""

    rule: Rule
    inputs: list[int]
    first: int
    scope: Scope | None
    line: str
    function: str


class Tape:
    """Values and calls in order; each value has a form, and a number for the memory that it lies in."""

    def __init__(self) -> None:
        self.run = Run()
        self.forms: list[Form] = []
        self.memory: list[int] = []
        self.steps: list[Step] = []
        self.constants: dict[int, tuple[torch.Tensor, Scope | None]] = {}  # there before the run, and first read where

    def given(self, tensor: torch.Tensor, form: Form | None = None) -> Ghost:
        """A ghost for a tensor that the graph is given; in another form than its own, if need be."""
        value = len(self.forms)
        self.forms.append(form or form_of(tensor))
        self.memory.append(value)
        return self.forms[value].ghost(value, self.run, tensor.requires_grad)
