"""The tape of a fast recording: calls as shape rules applied to numbered values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from torch_ir.capture.fast.call_rule import Rule
from torch_ir.capture.fast.shape_tensors import Form, Ghost, Run, form_of
from torch_ir.capture.naming.running_modules import Scope


class Step(NamedTuple):
    """One call: the values of its inputs, and the first value of its outputs, which are consecutive."""

    rule: Rule
    inputs: list[int]
    first: int
    scope: Scope | None
    line: str
    function: str


class Tape:
    """Values and calls in order; each value has a form and the number of its memory."""

    def __init__(self) -> None:
        self.run = Run()
        self.forms: list[Form] = []
        self.memory: list[int] = []
        self.steps: list[Step] = []
        self.given_values: set[int] = set()  # of inputs, weights and constants
        # tensors from before the run, and where each is first read
        self.constants: dict[int, tuple[torch.Tensor, Scope | None]] = {}

    def given(self, tensor: torch.Tensor, form: Form | None = None) -> Ghost:
        """Return a ghost for an input or weight of the graph, optionally in another form than its own."""
        value = len(self.forms)
        self.given_values.add(value)
        self.forms.append(form or form_of(tensor))
        self.memory.append(value)
        return self.forms[value].ghost(value, self.run, tensor.requires_grad)
