"""A call on a GPU as a CUDA graph: its kernels are recorded once, then launched as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Sequence[Any]]
_WARM_UP = 3  # calls in which libraries select kernels and allocate memory


def recorded(call: Call, written: Sequence[int] = ()) -> Call:
    """Return a call that records itself on first use; calls that cannot be recorded run as they are.

    `written` are the positions of the inputs to which the call writes.
    """
    chosen: list[Call] = []

    def run(*values: Any) -> Sequence[Any]:
        if not chosen:
            chosen.append(_recording(call, values, written) or call)
        return chosen[0](*values)

    return run


def recorded_on(call: Call, values: Sequence[Any], written: Sequence[int]) -> Callable[[], Sequence[Any]] | None:
    """Record a call on these tensors themselves, without copies; None if it fails.

    What the call writes to is copied for the calls before the recording; recording it changes nothing.
    """
    if not all(isinstance(value, Tensor) for value in values):
        return None
    spare = [value.clone() if index in written else value for index, value in enumerate(values)]
    found = _record(call, spare, values)
    if found is None:
        return None
    graph, made = found

    def replay() -> Sequence[Any]:
        graph.replay()
        return made

    return replay


def _recording(call: Call, values: Sequence[Any], written: Sequence[int]) -> Call | None:
    """Record a call: inputs are copied to fixed memory, outputs are copies of the results; None if it fails."""
    if not all(isinstance(value, Tensor) for value in values):
        return None
    given = [
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device) for value in values
    ]
    _copy(given, values)
    found = _record(call, given, given)
    if found is None:
        return None
    graph, made = found

    def replay(*values: Any) -> Sequence[Any]:
        _copy(given, values)
        graph.replay()
        _copy([values[index] for index in written], [given[index] for index in written])
        return [value.clone() if isinstance(value, Tensor) else value for value in made]

    return replay


def _record(
    call: Call, spare: Sequence[Any], values: Sequence[Any]
) -> tuple[torch.cuda.CUDAGraph, Sequence[Any]] | None:
    """Return a recording of the call on `values` and its results, after calls on `spare`; None if it fails."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not annotate it
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UP):
            call(*spare)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            made = call(*values)
    except RuntimeError:  # it synchronises with the GPU
        return None
    return graph, made


def _copy(places: Sequence[Tensor], values: Sequence[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)
