"""A model as a sweep sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from torch_ir.ir import IR
    from torch_ir.sweep.entry import Entry


@dataclass(frozen=True)
class Case:
    """Functions that capture a model, build it with weights, and make its inputs for the captured graph and a seed."""

    extract: Callable[[], IR]
    build: Callable[[], nn.Module]
    inputs: Callable[[IR, int], tuple[tuple[Any, ...], dict[str, Any]]]


# Called in the model's own process, so it must be importable there.
Opener = Callable[["Entry"], Case]
