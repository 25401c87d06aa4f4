"""Python that asks how a tensor lies in memory: the answer is decided on once, so the graph holds for that layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_ir.capture.instrument import all_intercepted
from torch_ir.capture.provenance import is_users, user_line

LAYOUT = "torch_ir_layout"  # where a graph module keeps the first line that asked
_QUESTIONS = ("is_contiguous", "storage_offset", "stride")


@contextmanager
def layout_questions() -> Iterator[list[str]]:
    """The lines of the user's code that ask for strides while it is traced."""
    lines: list[str] = []

    def ask(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(2)  # of the caller of the patched method
        if is_users(frame.f_code.co_filename):
            lines.append(user_line(f'File "{frame.f_code.co_filename}", line {frame.f_lineno}'))
        return original(tensor, *args, **kwargs)

    with all_intercepted({(torch.Tensor, name): ask for name in _QUESTIONS}):  # torch offers no hook
        yield lines
