"""What a run costs beside its kernels and their dispatch, in every mode, on the reference model.

module          (eager run - predicted nodes) / calls of modules
executor_node   (run of the executor - predicted nodes - executor_run) / nodes
compiled_node   the same for compiled code, by kernel
*_run           a graph of one node, without that node
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torch_ir.analysis.cost_model.node_costs import cost
from torch_ir.analysis.devices.calibration import COMPILED, CUDA, EAGER, EXECUTOR, Calibration, Overheads
from torch_ir.analysis.devices.run_modes import as_run, module_calls, part_of_run, run_time
from torch_ir.calibration.reference_model import ReferenceModel, tokens
from torch_ir.capture import extract_ir
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.run import IRExecutor

Call = Callable[..., Any]
Compile = Callable[[IR, Mapping[str, Tensor]], Call]
_CALLS = 5
_TURNS = 30


def measure_overheads(device: Calibration, compiled: Compile | None) -> Overheads:
    """Return the overheads of a device whose operators are measured; `compiled` compiles a graph with weights.

    Without a compiler, those of compiled code are those of the executor.
    """
    place = torch.device(device.kind)
    x, one = torch.zeros(16, device=place), _one_node(device.kind)
    relu = _seconds(lambda: torch.relu(x), place, is_waiting=False)
    started = {EAGER: _seconds(lambda: torch.relu(x), place) - relu}
    started[EXECUTOR] = _seconds(_bound(IRExecutor(one, {}), x), place) - relu
    model = ReferenceModel().eval()
    graph = extract_ir(model, (tokens(),), strict=False)
    given, model = tokens().to(place), model.to(place)
    weights = model.state_dict()
    runs = {
        EAGER: _bound(model, given),
        EXECUTOR: _bound(IRExecutor(graph, weights, device=place), given),
    }
    if compiled is not None:
        with suppress(Exception):  # no C++ compiler, or anything that one raises
            run = _bound(compiled(graph, weights), given)
            run()
            started[COMPILED] = _seconds(_bound(compiled(one, {}), x), place)
            runs[COMPILED] = run
    base = replace(
        device, overheads=Overheads(**{f"{mode}_run": max(0.0, round(each, 9)) for mode, each in started.items()})
    )
    beyond = {
        mode: max(0.0, _seconds(call, place) - run_time(graph, base, mode).seconds) / _count(graph, mode)
        for mode, call in runs.items()
    }
    return replace(
        base.overheads,
        module=beyond[EAGER],
        executor_node=beyond[EXECUTOR],
        compiled_node=beyond.get(COMPILED, beyond[EXECUTOR]),
        compiled_run=base.overheads.compiled_run or base.overheads.executor_run,
    )


def _count(graph: IR, mode: str) -> int:
    """Return the number of modules that are called, or of the nodes or kernels that run."""
    run = as_run(graph, mode)
    return len(module_calls(run)) if mode == EAGER else len(part_of_run(cost(run), mode).nodes)


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
