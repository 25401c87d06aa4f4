"""Calls of `contiguous` that returned their input itself: no operator runs, so they are not in the graph.

y = x.contiguous()
y.add_(1)
return x          # is x + 1 where x is contiguous, and x where it is not
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torch_ir.capture.instrument import intercepted
from torch_ir.capture.program.provenance import calling_line
from torch_ir.ops.torch_internals import DisableTorchFunction, version_of

COPIES = "torch_ir_copies"  # attribute of a graph module: the first line that a later write affects
Version = Callable[[torch.Tensor], int]  # counts writes to the memory of a tensor


class _Call(NamedTuple):
    tensor: torch.Tensor
    version: int
    line: str


class NoOpCopies:
    """The `contiguous` calls of one run that copied nothing."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._calls: list[_Call] = []

    def contiguous(self, original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = original(tensor, *args, **kwargs)
        if made is tensor and (line := calling_line()):
            self._calls.append(_Call(tensor, self._version(tensor), line))
        return made

    def written_later(self) -> str:
        """Return the first line whose result shares memory with a later write; empty if there is none."""
        return next((call.line for call in self._calls if self._version(call.tensor) > call.version), "")


@contextmanager
def no_op_copies(version: Version) -> Iterator[NoOpCopies]:
    """Record calls of `contiguous` in the user's code that copied nothing."""
    calls = NoOpCopies(version)
    with intercepted(torch.Tensor, "contiguous", calls.contiguous):
        yield calls


def torch_version(tensor: torch.Tensor) -> int:
    """Return torch's count of writes; 0 for an inference tensor, which has none."""
    with DisableTorchFunction():  # otherwise it would count as a question of the model
        return 0 if tensor.is_inference() else version_of(tensor)
