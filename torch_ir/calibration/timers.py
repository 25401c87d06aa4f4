"""Clocks for operators: CPU time of a call, or the time of its kernels on a GPU and that of starting them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
_TURN = 0.003  # seconds of calls that are timed together
_TURNS = 4
_WARM_UP = 2
_KEPT = 2  # results that stay alive, as in a model: the next one gets other memory
_IN_GRAPH = 0.0004  # seconds of kernels in a CUDA graph
_MOST_IN_GRAPH = 40
_REPLAYS = 4
_TICK = 1e-9  # seconds; a clock of CPU time may stand still during a short call
_STARTED = 50  # calls whose start is timed together


class CpuTimer:
    """Seconds of calls on the CPU; with one thread, its CPU time, so that other programs count little."""

    def __init__(self) -> None:
        self._clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def dispatch(self, calls: Sequence[Call]) -> float:
        """Return the seconds in which a call on tiny tensors ends."""
        return self.kernel(calls)

    def kernel(self, calls: Sequence[Call]) -> float:
        """Return the seconds of a call, the least of several turns."""
        for number in range(_WARM_UP):
            calls[number % len(calls)]()
        once = self._turn(calls, 0, 1)
        count = max(1, min(1000, int(_TURN / max(once, 1e-7))))
        turns = _TURNS if once * count < 10 * _TURN else 2
        return min(once, *(self._turn(calls, turn * count, count) for turn in range(turns)))

    def _turn(self, calls: Sequence[Call], first: int, count: int) -> float:
        chosen = [calls[(first + number) % len(calls)] for number in range(count)]
        kept = deque[Any](maxlen=_KEPT)
        start = self._clock()
        for call in chosen:
            kept.append(call())
        return max(self._clock() - start, _TICK) / count


class CudaTimer:
    """Seconds of kernels on a GPU, recorded as a CUDA graph, and of starting them from the host."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def dispatch(self, calls: Sequence[Call]) -> float:
        """Return the seconds in which the host starts a call, while the GPU is busy with those before."""
        calls[0]()
        taken = []
        for _ in range(_REPLAYS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(_STARTED):
                calls[0]()
            taken.append((time.perf_counter() - start) / _STARTED)
        torch.cuda.synchronize()
        return min(taken)

    def kernel(self, calls: Sequence[Call]) -> float:
        """Return the seconds of the kernels of a call, without those of starting it."""
        self._stream.wait_stream(torch.cuda.current_stream())  # on which the inputs of the calls are made
        with torch.cuda.stream(self._stream):
            for number in range(_WARM_UP):
                calls[number % len(calls)]()
            once = self._elapsed(calls[0])
            count = max(2, min(_MOST_IN_GRAPH, int(_IN_GRAPH / max(once, 1e-7))))
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin()
            try:
                for number in range(count):
                    calls[number % len(calls)]()
            finally:
                graph.capture_end()
            graph.replay()
            seconds = min(self._elapsed(graph.replay) for _ in range(_REPLAYS)) / count
            graph.reset()
        return seconds

    def _elapsed(self, call: Call) -> float:
        """Return the seconds between the events around a call."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        start, end = events
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


Timer = CpuTimer | CudaTimer
