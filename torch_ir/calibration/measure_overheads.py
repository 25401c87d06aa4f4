"""What a run costs beside its kernels and their dispatch, in every mode, on the reference models.

module          a call of an empty module
eager_node      (eager run - predicted nodes - calls of modules) / nodes: the Python of the model
executor_node   (run of the executor - predicted nodes - executor_run) / nodes
compiled_node   the same for compiled code, by kernel
*_run           a graph of one node, without that node; less if it overlaps with the kernels of a longer graph
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_ir.analysis.cost_model.node_costs import cost
from torch_ir.analysis.devices.calibration import COMPILED, CUDA, EAGER, EXECUTOR, Calibration, Overheads
from torch_ir.analysis.devices.run_modes import as_run, module_calls, part_of_run, run_time
from torch_ir.calibration.reference_models import reference_models
from torch_ir.capture import extract_ir
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.run import IRExecutor

Call = Callable[..., Any]
Compile = Callable[[IR, Mapping[str, Tensor]], Call]
_CALLS = 5
_TURNS = 30
_CHAIN = 100


def measure_overheads(device: Calibration, compiled: Compile | None) -> Overheads:
    """Return the overheads of a device whose operators are measured; `compiled` compiles a graph with weights.

    Without a compiler, those of compiled code are those of the executor.
    """
    place = torch.device(device.kind)
    x, one = torch.zeros(16, device=place), _one_node(device.kind)
    relu = _seconds(lambda: torch.relu(x), place, is_waiting=False)
    started = {EAGER: _seconds(lambda: torch.relu(x), place) - relu}
    started[EXECUTOR] = _seconds(_bound(IRExecutor(one, {}), x), place) - relu
    if compiled is not None:
        with suppress(Exception):  # no C++ compiler, or anything that one raises
            started[COMPILED] = _seconds(_bound(compiled(one, {}), x), place)
    base = replace(
        device, overheads=Overheads(**{f"{mode}_run": max(0.0, round(each, 9)) for mode, each in started.items()})
    )
    samples: dict[str, list[Sample]] = {mode: [] for mode in started}
    for model, given in reference_models():
        for mode, sample in _samples(model, given, base, compiled if COMPILED in started else None):
            samples[mode].append(sample)
    return overheads_of(base.overheads, _module_call(place), samples)


class Sample(NamedTuple):
    """What one run took beyond the predicted time, with its calls of modules and its nodes or kernels."""

    seconds: float
    modules: int
    nodes: int


def overheads_of(one: Overheads, module: float, samples: Mapping[str, Sequence[Sample]]) -> Overheads:
    """Return the overheads that explain samples, given those of a graph of one node and the time of a module's call.

    If a run takes less than predicted, some of what precedes its nodes overlaps with them.
    """
    taken = {mode: list(found) for mode, found in samples.items() if found}
    taken[EAGER] = [each._replace(seconds=each.seconds - module * each.modules) for each in taken[EAGER]]
    nodes = {f"{mode}_node": _by_node(found) for mode, found in taken.items()}
    overlap = {mode: max(min(0.0, each.seconds) for each in found) for mode, found in taken.items()}
    runs = {f"{mode}_run": max(0.0, one.of_run(mode) + each) for mode, each in overlap.items()}
    compiled = {"compiled_node": nodes["executor_node"], "compiled_run": runs["executor_run"]}
    return Overheads(**{"module": module, **compiled, **nodes, **runs})


def _samples(
    model: nn.Module, given: Tensor, device: Calibration, compiled: Compile | None
) -> Iterator[tuple[str, Sample]]:
    """Yield what a model takes beyond its predicted time, by mode."""
    place = torch.device(device.kind)
    graph = extract_ir(model, (given,), strict=False)
    given, model = given.to(place), model.to(place)
    weights = model.state_dict()
    calls = {EAGER: _bound(model, given), EXECUTOR: _bound(IRExecutor(graph, weights, device=place), given)}
    if compiled is not None:
        with suppress(Exception):  # as above
            calls[COMPILED] = _bound(compiled(graph, weights), given)
    for mode, call in calls.items():
        run = as_run(graph, mode)
        beyond = _seconds(call, place) - run_time(graph, device, mode).seconds
        yield mode, Sample(beyond, len(module_calls(run)), len(part_of_run(cost(run), mode).nodes))


def _by_node(samples: Sequence[Sample]) -> float:
    return max(0.0, sum(each.seconds for each in samples)) / sum(each.nodes for each in samples)


def _module_call(place: torch.device) -> float:
    """Return the seconds of a call of a module that does nothing."""
    chain, x = nn.Sequential(*(nn.Identity() for _ in range(_CHAIN))), torch.zeros(1, device=place)
    return _seconds(lambda: chain(x), place) / _CHAIN


def _one_node(device: str) -> IR:
    x, made = (TensorMeta(name, (16,), "float32") for name in ("x", "relu"))
    return IR([OpNode("relu", "aten.relu.default", [x], [made], args=["self"])], [x], [made], device=device)


def _bound(call: Call, given: Tensor) -> Callable[[], Any]:
    return lambda: call(given)


def _seconds(call: Callable[[], Any], place: torch.device, *, is_waiting: bool = True) -> float:
    """Return the seconds of a call, the least of several turns; on a GPU, with waiting, until its result is there."""
    is_gpu = place.type == CUDA
    clock = time.process_time if not is_gpu and torch.get_num_threads() == 1 else time.perf_counter
    for _ in range(3):
        call()
    taken = []
    for _ in range(_TURNS):
        if is_gpu:
            torch.cuda.synchronize()
        start = clock()
        for _ in range(_CALLS):
            call()
            if is_gpu and is_waiting:
                torch.cuda.synchronize()
        taken.append((clock() - start) / _CALLS)
    return min(taken)
