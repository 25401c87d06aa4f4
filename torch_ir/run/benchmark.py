"""Time several implementations of the same computation, interleaved in one process, so that noise affects all alike.

found = bench({"graph": make_graph_call, "eager": make_model_call}, repeat=20)
print(found["eager"].time, found["eager"].ratio)
"""

from __future__ import annotations

import copy
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.errors import first_line
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.tolerances import compare

Action = Callable[[], Any]
_WARM_UP = 3  # calls of each before the first round
_LEAST = 0.005  # seconds of a turn; faster actions are called several times in it
_FEWEST = 3  # rounds before a race may end early


@dataclass(frozen=True)
class Spread:
    """The median and quartiles of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """Return the spread of at least one number."""
        if len(numbers) == 1:
            return cls(*numbers, *numbers, *numbers)
        low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Timing:
    """Seconds per call, and the ratio to the first implementation, round by round."""

    time: Spread
    ratio: Spread


def bench(
    candidates: Mapping[str, Callable[[], Action]],
    repeat: int = 20,
    *,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
    margin: float | None = None,
    budget: float = math.inf,
) -> dict[str, Timing | str]:
    """Build each candidate, compare its result with the first one's, and time those that agree; else return the reason.

    Everything runs without gradients, and with the same random numbers in the first call. The first candidate must
    work. `margin` and `budget` end the rounds early; see `race`.
    """
    actions: dict[str, Action] = {}
    wrong: dict[str, str] = {}
    expected: Any = None
    with torch.no_grad():
        for name, make in candidates.items():
            progress(f"preparing {name}")
            try:
                actions[name] = make()
                torch.manual_seed(seed)
                result = actions[name]()
            except Exception as error:  # anything that a compiler or runtime raises
                if expected is None:
                    raise
                wrong[name] = f"it fails: {first_line(error)}"
                continue
            if expected is None:
                expected = copy.deepcopy(tensors_of(result))  # buffers may change in later calls
            found = difference(expected, result, rtol, atol)
            if found:
                wrong[name] = f"its results differ: {found}"
        right = {name: action for name, action in actions.items() if name not in wrong}
        times = race(
            right, repeat, progress=lambda done: progress(f"round {done} of {repeat}"), margin=margin, budget=budget
        )
    progress("")
    return {name: times[name] if name in times else wrong[name] for name in candidates}


def race(
    actions: Mapping[str, Action],
    repeat: int,
    *,
    progress: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
    margin: float | None = None,
    budget: float = math.inf,
) -> dict[str, Timing]:
    """Time actions in `repeat` rounds, after warming up.

    In every round each action has one turn, in rotating order; the first call of a turn is not timed. `progress` gets
    the number of finished rounds. After three rounds, the race ends if it took `budget` seconds, or if each action was
    faster than the first in every round by the factor `margin`, or slower in every round.
    """
    names = list(actions)
    calls = {name: _calls(action, clock) for name, action in actions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    start = clock()
    gc.collect(1)  # nothing looks at older objects before the end
    with uncollected():
        for number in range(repeat):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                actions[name]()  # not timed: threads and caches are still those of another action
                seconds[name].append(_turn(actions[name], calls[name], clock))
            gc.collect(1)  # the garbage of a round is young; collecting all may take longer than the round
            progress(number + 1)
            if number + 1 >= _FEWEST and (clock() - start > budget or _is_decided(list(seconds.values()), margin)):
                break
    base = seconds[names[0]]
    return {
        name: Timing(Spread.of(taken), Spread.of([one / other for one, other in zip(taken, base, strict=True)]))
        for name, taken in seconds.items()
    }


def _is_decided(seconds: Sequence[Sequence[float]], margin: float | None) -> bool:
    """Whether each action was faster than the first in all rounds by the factor `margin`, or slower in all."""
    base, *others = seconds
    pairs = [list(zip(taken, base, strict=True)) for taken in others]
    return margin is not None and all(
        all(one * margin < other for one, other in rounds) or all(one > other * margin for one, other in rounds)
        for rounds in pairs
    )


def _calls(action: Action, clock: Callable[[], float]) -> int:
    """Warm up, and return how many calls make a turn long enough to be timed."""
    taken = [_turn(action, 1, clock) for _ in range(_WARM_UP)]
    return max(1, math.ceil(_LEAST / max(taken[-1], 1e-9)))


def _turn(action: Action, calls: int, clock: Callable[[], float]) -> float:
    """Return the seconds of a call."""
    start = clock()
    for _ in range(calls):
        action()
    return (clock() - start) / calls


def difference(expected: Any, actual: Any, rtol: float | None = None, atol: float | None = None) -> str:
    """Describe how the tensors of two results differ by more than their dtypes allow; empty if they do not."""
    want, got = tensors_of(expected), tensors_of(actual)
    if len(want) != len(got):
        return f"{len(got)} results instead of {len(want)}"
    for index, (one, other) in enumerate(zip(want, got, strict=True)):
        found = compare(one, other, rtol, atol)
        if found.reason:
            return f"result {index}: {found.reason}, by up to {found.max_diff:.3g}"
    return ""


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested value, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Set the number of torch's threads, or keep it if None; restore it at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
