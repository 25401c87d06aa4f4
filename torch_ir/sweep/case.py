"""What a sweep must know of a model."""

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
    """A model that was named: how it is captured, how it is built with weights, and what it is called with.

    Inputs are for the graph that was captured, and random ones come of the seed.
    """

    extract: Callable[[], IR]
    build: Callable[[], nn.Module]
    inputs: Callable[[IR, int], tuple[tuple[Any, ...], dict[str, Any]]]


# It is called in the model's own process, so it must be a function that another process can import.
Opener = Callable[["Entry"], Case]
