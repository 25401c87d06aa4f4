"""A named model before it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Source:
    """Factory of a model in eval mode with random weights; an exported model also has its program."""

    text: str
    build: Callable[[], nn.Module]
    program: ExportedProgram | None = None
