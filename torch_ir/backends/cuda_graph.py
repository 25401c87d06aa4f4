"""A call on a GPU as a CUDA graph: its kernels are recorded once, then launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Sequence[Any]]
_WARM_UP = 3  # calls in which libraries select kernels and allocate memory


def recorded(call: Call) -> Call:
    """Return a call that records itself on first use; calls that cannot be recorded run as they are."""
    chosen: list[Call] = []

    def run(*values: Any) -> Sequence[Any]:
        if not chosen:
            chosen.append(_recording(call, values) or call)
        return chosen[0](*values)

    return run


def _recording(call: Call, values: Sequence[Any]) -> Call | None:
    """Record a call: inputs are copied to fixed memory, outputs are copies of the results; None if it fails."""
    if not all(isinstance(value, Tensor) for value in values):
        return None
    given = [
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device) for value in values
    ]
    _copy(given, values)
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not annotate it
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UP):
            call(*given)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            made = call(*given)
    except RuntimeError:  # it synchronises with the GPU
        return None

    def replay(*values: Any) -> Sequence[Any]:
        _copy(given, values)
        graph.replay()
        return [value.clone() if isinstance(value, Tensor) else value for value in made]

    return replay


def _copy(places: Sequence[Tensor], values: Sequence[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)
