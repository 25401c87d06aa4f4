"""A model that the user named, before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Source:
    """How a model is built, in eval mode and with random weights; one that was exported already has a program."""

    text: str
    build: Callable[[], nn.Module]
    program: ExportedProgram | None = None
