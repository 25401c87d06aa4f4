"""Calls of `contiguous` that returned their input itself: no operator runs, so that no graph shows them.

y = x.contiguous()
y.add_(1)
return x          # is x + 1 where x is contiguous, and x where it is not
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torch_ir.capture.instrument import intercepted
from torch_ir.capture.program.provenance import is_users, user_line
from torch_ir.ops.torch_internals import version_of

COPIES = "torch_ir_copies"  # where a graph module keeps the first line that a later write concerns
Version = Callable[[torch.Tensor], int]  # how often the memory of a tensor was written to


class _Call(NamedTuple):
    tensor: torch.Tensor
    version: int
    line: str


class NoOpCopies:
    """The calls of one run."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._calls: list[_Call] = []

    def contiguous(self, original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = original(tensor, *args, **kwargs)
        frame = sys._getframe(2)  # of the caller of the patched method
        if made is tensor and is_users(frame.f_code.co_filename):
            line = user_line(f'File "{frame.f_code.co_filename}", line {frame.f_lineno}')
            self._calls.append(_Call(tensor, self._version(tensor), line))
        return made

    def written_later(self) -> str:
        """The first line whose result shares memory with a later write, or nothing."""
        return next((call.line for call in self._calls if self._version(call.tensor) > call.version), "")


@contextmanager
def no_op_copies(version: Version) -> Iterator[NoOpCopies]:
    """Note the calls of `contiguous` by the user's code that copied nothing."""
    calls = NoOpCopies(version)
    with intercepted(torch.Tensor, "contiguous", calls.contiguous):
        yield calls


def torch_version(tensor: torch.Tensor) -> int:
    """Torch's own count of writes, which a tensor of inference mode does not have."""
    return 0 if tensor.is_inference() else version_of(tensor)
