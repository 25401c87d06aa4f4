"""What a run wrote down: values as numbers, calls as rules applied to them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from torch_ir.capture.fast.rule_answers import Rule
from torch_ir.capture.fast.shape_tensors import Form, Ghost, Run, form_of
from torch_ir.capture.naming.running_modules import Scope


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
