"""Latency of one call: the model in eager and in compilers, and our graph in each back end, as ratios."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

import torch_ir
from benchmarks import latency_peers as peers
from benchmarks.measure import measured_alone, table
from benchmarks.models import SERVED, Case
from torch_ir.backends import compile, installed_backends
from torch_ir.run.benchmark import Timing, bench, threads

THREADS = 2
CALLS = 3  # per turn; 1 of a slow model
SLOW = 0.3  # seconds of a call
ROUNDS = 12
OURS = "ours: "
ALONE = ("iree", "auto")  # iree's threads would disturb the others; auto is one of the others
Action = Callable[[], Any]


def run(rounds: int = ROUNDS) -> str:
    """Return a column per model: the speed of every contestant relative to eager, with quartiles."""
    found = {case.name: _of_model(case.name, rounds) for case in SERVED}
    roads = dict.fromkeys(road for by_road in found.values() for road in by_road)
    rows = [[road, *(_cell(by_road.get(road)) for by_road in found.values())] for road in roads]
    return table(["", *found], [*rows, ["**our fastest / the fastest peer**", *map(_lead, found.values())]])


def _of_model(name: str, rounds: int) -> dict[str, Any]:
    """Time all contestants of a model in one process, and those that would disturb them in another."""
    together = measured_alone("benchmarks.latency", name, rounds) or {}
    apart = measured_alone("benchmarks.latency", name, rounds, "iree") or {}
    return {**together, **{road: result for road, result in apart.items() if road.startswith(OURS)}}


def _cell(result: Any) -> str:
    """Format a speed relative to eager with its quartiles, or the reason why it was not timed."""
    if not isinstance(result, list):
        return str(result or "")
    low, median, high = result
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def _lead(results: dict[str, Any]) -> str:
    """Return the speed of our fastest back end relative to the fastest peer."""
    speed = {road: result[1] for road, result in results.items() if isinstance(result, list)}
    ours = max((value, road) for road, value in speed.items() if road.startswith(OURS))
    theirs = max((value, road) for road, value in speed.items() if not road.startswith(OURS))
    return f"{ours[0] / theirs[0]:.2f}: {ours[1].removeprefix(OURS)} / {theirs[1]}"


def measured(case: Case, rounds: int, *names: str) -> dict[str, Any]:
    """Return, by contestant, the quartiles of its speed relative to eager, or the reason why it was not timed."""
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    with threads(THREADS):
        calls = _calls(model, inputs)
        roads = {road: partial(_often, make, calls) for road, make in _roads(model, inputs, names)}
        found = bench(roads, rounds, rtol=1e-3, atol=1e-3)
    return {road: _speed(result) for road, result in found.items()}


def _speed(result: Timing | str) -> list[float] | str:
    if isinstance(result, str):
        return result
    return [1 / part for part in (result.ratio.high, result.ratio.median, result.ratio.low)]


def _roads(
    model: nn.Module, inputs: dict[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[], Action]]]:
    yield "eager", lambda: lambda: model(**inputs)
    if not names:
        yield from ((name, partial(make, model, inputs)) for name, make in peers.installed().items())
    ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
    for name in names or [name for name in installed_backends() if name not in ALONE]:
        yield f"{OURS}{name}", partial(_ours, ir, name, model, inputs)


def _calls(model: nn.Module, inputs: dict[str, Any]) -> int:
    """Return the number of calls in a turn, the same for all contestants."""
    with torch.no_grad():
        model(**inputs)
        start = time.perf_counter()
        model(**inputs)
    return 1 if time.perf_counter() - start > SLOW else CALLS


def _often(make: Callable[[], Action], calls: int) -> Action:
    """Make several calls in a row, so that a turn is long enough to time."""
    action = make()
    return lambda: [action() for _ in range(calls)][-1]


def _ours(ir: torch_ir.IR, backend: str, model: nn.Module, inputs: dict[str, Any]) -> Action:
    compiled = compile(ir, model.state_dict(), backend=backend)
    return lambda: compiled(**inputs)


if __name__ == "__main__":
    name, rounds, *names = sys.argv[1:]
    print(json.dumps(measured(next(case for case in SERVED if case.name == name), int(rounds), *names)))
