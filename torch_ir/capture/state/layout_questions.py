"""Lines of forward that read strides or storage offsets: the graph is valid only for the layout at capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_ir.capture.instrument import Handler, all_intercepted
from torch_ir.capture.program.provenance import calling_line
from torch_ir.ops.guards import OFFSET

LAYOUT = "torch_ir_layout"  # attribute of a graph module: the first such line
_QUESTIONS = ("is_contiguous", "stride")


@contextmanager
def layout_questions(lines: list[str]) -> Iterator[list[str]]:
    """Add the user's lines that read strides or, first in the list, storage offsets; yield the list."""

    def ask(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if line := calling_line(2):
            lines.append(line)
        return original(tensor, *args, **kwargs)

    def ask_for_offset(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
        if line := calling_line(2):
            lines.insert(0, f"{line}{OFFSET}")
        return original(tensor)

    handlers: dict[tuple[Any, str], Handler] = {(torch.Tensor, name): ask for name in _QUESTIONS}
    with all_intercepted({**handlers, (torch.Tensor, "storage_offset"): ask_for_offset}):  # torch has no hook for these
        yield lines
