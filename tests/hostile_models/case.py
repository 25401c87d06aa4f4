"""A model that is hard to capture, and its expected result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

_ROOT = Path(__file__).resolve().parents[2]
X = torch.arange(12.0).reshape(3, 4) / 10


@dataclass
class Case:
    """A model, its inputs, and the expected result: the capture method, or words of the error."""

    model: type[nn.Module]
    args: tuple[Any, ...] = (X,)
    kwargs: dict[str, Any] = field(default_factory=dict)
    captured_by: str = ""
    words: tuple[str, ...] = ()
    isolated: bool = False
    time_limit: float = 600

    @property
    def place(self) -> str:
        """The marked line, as a diagnosis writes it; nothing if no line is marked."""
        lines, first = inspect.getsourcelines(self.model)
        marked = [first + index for index, line in enumerate(lines) if line.rstrip().endswith("# here")]
        file = Path(inspect.getfile(self.model)).relative_to(_ROOT)
        return f"{file.as_posix()}:{marked[0]}" if marked else ""


CASES: dict[str, Case] = {}


def case(*args: Any, **facts: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enter a model into the table under the name of its class."""

    def enter(model: type[nn.Module]) -> type[nn.Module]:
        CASES[model.__name__] = Case(model, *args, **facts)
        return model

    return enter
