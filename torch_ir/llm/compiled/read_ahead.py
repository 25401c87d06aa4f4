"""Read tokens from a device while further steps run on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

AHEAD = 2  # steps in flight on a GPU while the host waits for a token


def tokens_of(tokens: Tensor, first: int, count: int, step: Callable[[], object]) -> Iterator[Tensor]:
    """Yield the columns of `tokens` from `first` on, as copies on the host; a step computes the next column.

    The first column is there already.
    """
    waiting: deque[Callable[[], Tensor]] = deque()
    read = _reader(tokens)
    ahead = AHEAD if tokens.is_cuda else 0
    for column in range(first, first + count):
        if column > first:
            step()
        waiting.append(read(column))
        if len(waiting) > ahead:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def _reader(tokens: Tensor) -> Callable[[int], Callable[[], Tensor]]:
    """Return a function that starts to copy a column, and returns a function that waits for the copy."""
    if not tokens.is_cuda:
        return lambda column: tokens[:, column].clone
    beside = torch.cuda.Stream()

    def start(column: int) -> Callable[[], Tensor]:
        copy = torch.empty(tokens.shape[0], dtype=tokens.dtype, pin_memory=True)
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            copy.copy_(tokens[:, column], non_blocking=True)
            done = torch.cuda.Event()
            done.record()

        def wait() -> Tensor:
            done.synchronize()
            return copy

        return wait

    return start
