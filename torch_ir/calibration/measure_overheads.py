"""What a run costs beside its kernels and their dispatch, in every mode, on the reference models.

module          a call of an empty module
eager_node      (eager run - predicted nodes - calls of modules) / nodes: the Python of the model
executor_node   (run of the executor - predicted nodes - executor_run) / nodes
compiled_node   the same for compiled code, by kernel
*_run           a graph of one node, without that node; less if it overlaps with the kernels of a longer graph
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
_TURNS = 8
_CHAIN = 100


class WholeRuns:
    """Times of whole runs: of one node, of empty modules, and of the reference models in every mode.

    Other programs slow a host down for seconds at a time: `measure` is called now and then, and the least time counts.
    """

    def __init__(self, place: torch.device, dtype: torch.dtype, compiled: Compile | None) -> None:
        """Prepare the runs; `compiled` compiles a graph with weights, and without it compiled code is not measured."""
        self._place = place
        x, one = torch.zeros(16, device=place), _one_node(place.type)
        chain = nn.Sequential(*(nn.Identity() for _ in range(_CHAIN)))
        self._started = {EAGER: _bound(torch.relu, x), EXECUTOR: _bound(IRExecutor(one, {}), x)}
        if compiled is not None:
            with suppress(Exception):  # no C++ compiler, or anything that one raises
                self._started[COMPILED] = _bound(compiled(one, {}), x)
        self._modules = _bound(chain, x)
        self._models = [
            _model_runs(model.to(dtype), _cast(given, dtype), place, compiled if COMPILED in self._started else None)
            for model, given in reference_models()
        ]
        self._seconds: dict[Call, float] = {}
        self._enqueuing = math.inf

    def measure(self) -> None:
        """Time every run once more."""
        runs = [
            self._modules,
            *self._started.values(),
            *(call for each in self._models for call in each.calls.values()),
        ]
        for call in runs:
            seconds = _seconds(call, self._place)
            self._seconds[call] = min(seconds, self._seconds.get(call, seconds))
        self._enqueuing = min(self._enqueuing, _seconds(self._started[EAGER], self._place, is_waiting=False))

    def overheads(self, device: Calibration) -> Overheads:
        """Return the overheads of the device whose operators are measured; without a compiler, as in the executor."""
        # An operator of a graph counts alone; a compiled graph of one node is all overhead.
        one = {mode: 0.0 if mode == COMPILED else self._enqueuing for mode in self._started}
        started = {
            f"{mode}_run": max(0.0, round(self._seconds[call] - one[mode], 9)) for mode, call in self._started.items()
        }
        base = replace(device, overheads=Overheads(**started))
        samples: dict[str, list[Sample]] = {mode: [] for mode in self._started}
        for runs in self._models:
            for mode, call in runs.calls.items():
                samples[mode].append(_sample(runs.graph, mode, self._seconds[call], base))
        return overheads_of(base.overheads, self._seconds[self._modules] / _CHAIN, samples)


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


class ModelRuns(NamedTuple):
    """A reference model: its graph, and a call of it in every mode."""

    graph: IR
    calls: dict[str, Callable[[], Any]]


def _model_runs(model: nn.Module, given: Tensor, place: torch.device, compiled: Compile | None) -> ModelRuns:
    graph = extract_ir(model, (given,), strict=False)
    given, model = given.to(place), model.to(place)
    weights = model.state_dict()
    calls = {EAGER: _bound(model, given), EXECUTOR: _bound(IRExecutor(graph, weights, device=place), given)}
    if compiled is not None:
        with suppress(Exception):  # as above
            calls[COMPILED] = _bound(compiled(graph, weights), given)
    return ModelRuns(graph, calls)


def _sample(graph: IR, mode: str, seconds: float, device: Calibration) -> Sample:
    run = as_run(graph, mode)
    beyond = seconds - run_time(graph, device, mode).seconds
    return Sample(beyond, len(module_calls(run)), len(part_of_run(cost(run), mode).nodes))


def _by_node(samples: Sequence[Sample]) -> float:
    return max(0.0, sum(each.seconds for each in samples)) / sum(each.nodes for each in samples)


def _one_node(device: str) -> IR:
    x, made = (TensorMeta(name, (16,), "float32") for name in ("x", "relu"))
    return IR([OpNode("relu", "aten.relu.default", [x], [made], args=["self"])], [x], [made], device=device)


def _cast(given: Tensor, dtype: torch.dtype) -> Tensor:
    return given.to(dtype) if given.is_floating_point() else given


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
