"""Python that asks how a tensor lies in memory: the answer is decided on once, so the graph holds for that layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_ir.capture.instrument import Handler, all_intercepted
from torch_ir.capture.program.provenance import is_users, user_line
from torch_ir.ops.guards import OFFSET

LAYOUT = "torch_ir_layout"  # where a graph module keeps the first line that asked
_QUESTIONS = ("is_contiguous", "stride")


@contextmanager
def layout_questions() -> Iterator[list[str]]:
    """The lines of the user's code that ask for strides while it is traced, those that ask for an offset first."""
    lines: list[str] = []

    def ask(original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        lines.extend(_users_line())
        return original(tensor, *args, **kwargs)

    def ask_for_offset(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
        lines[:0] = [f"{line}{OFFSET}" for line in _users_line()]
        return original(tensor)

    handlers: dict[tuple[Any, str], Handler] = {(torch.Tensor, name): ask for name in _QUESTIONS}
    with all_intercepted({**handlers, (torch.Tensor, "storage_offset"): ask_for_offset}):  # torch offers no hook
        yield lines


def _users_line() -> list[str]:
    """The line that called a patched method, if it is the user's."""
    frame = sys._getframe(3)
    if not is_users(frame.f_code.co_filename):
        return []
    return [user_line(f'File "{frame.f_code.co_filename}", line {frame.f_lineno}')]
