"""Torch's ExportDB of features that torch.export supports; each example is a form."""

import copy
from functools import partial
from typing import Any

from torch import nn
from torch._export.db.case import ExportCase, SupportLevel
from torch._export.db.examples import filter_examples_by_support_level

from tests.forms.form import VERIFIED, Family, Outcome, carried

family = Family("ExportDB")
# Supported by torch.export, but not carried.
EXCEPTIONS = {"scalar_output": carried("returns a Python number and no tensor, so there is nothing to compare")}


class Positional(nn.Module):
    """A model whose keyword arguments come as a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.model(*args, **keywords)


def _build(example: ExportCase) -> nn.Module:
    model = copy.deepcopy(example.model).eval()
    return Positional(model) if example.example_kwargs else model


def _calls(example: ExportCase) -> tuple[tuple[Any, ...], ...]:
    if example.example_kwargs:
        return ((example.example_args, example.example_kwargs),)
    return (example.example_args, *([example.extra_args] if example.extra_args else []))


for name, example in sorted(filter_examples_by_support_level(SupportLevel.SUPPORTED).items()):
    family.add(
        name,
        partial(_build, example),
        _calls(example),
        dynamic_shapes=example.dynamic_shapes or None,
        expected=EXCEPTIONS.get(name, Outcome(VERIFIED)),
    )
