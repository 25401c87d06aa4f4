"""What a run costs beside its kernels: calls of modules, nodes of the executor, and the run itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_ir.analysis.devices.calibration import Overheads
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.run import IRExecutor

_NODES = 64
_CALLS = 30
_TURNS = 5


def measure_overheads(device: torch.device, compiled: Callable[[IR], Callable[..., Any]] | None) -> Overheads:
    """Return the overheads on a device; `compiled` compiles a graph, and None if there is no compiler."""
    x = torch.zeros(16, device=device)
    nest = nn.Sequential(*(nn.Identity() for _ in range(_NODES)))
    one, many = (IRExecutor(_chain(count, device.type), {}) for count in (1, _NODES))
    single, chain = (_seconds(lambda executor=executor: executor(x), device) for executor in (one, many))  # type: ignore[misc]
    relu = _seconds(lambda: torch.relu(x), device, _CALLS)
    run = max(0.0, single - relu)
    return Overheads(
        module=_seconds(lambda: nest(x), device) / (_NODES + 1),
        executor_node=max(0.0, (chain - single) / (_NODES - 1) - relu),
        eager_run=max(0.0, _seconds(lambda: torch.relu(x), device) - relu),
        executor_run=run,
        compiled_run=_compiled_run(compiled, device, x) if compiled else run,
    )


def _compiled_run(compiled: Callable[[IR], Callable[..., Any]], device: torch.device, x: torch.Tensor) -> float:
    try:
        call = compiled(_chain(1, device.type))
    except TorchIRError:  # no C++ compiler
        return 0.0
    return _seconds(lambda: call(x), device)


def _chain(count: int, device: str) -> IR:
    """Return a graph of so many `relu` nodes in a row."""
    x = TensorMeta("x", (16,), "float32")
    nodes, last = [], x
    for number in range(count):
        made = TensorMeta(f"relu_{number}", (16,), "float32")
        nodes.append(OpNode(made.name, "aten.relu.default", [last], [made], args=["self"]))
        last = made
    return IR(nodes, [x], [last], device=device)


def _seconds(call: Callable[[], Any], device: torch.device, started: int = 1) -> float:
    """Return the seconds of a call, the least of several turns; on a GPU, until the last of `started` calls ends."""
    is_gpu = device.type == "cuda"
    clock = time.perf_counter if is_gpu or torch.get_num_threads() > 1 else time.process_time
    for _ in range(3):
        call()
    taken = []
    for _ in range(_TURNS):
        torch.cuda.synchronize() if is_gpu else None
        start = clock()
        for _ in range(_CALLS):
            call()
            if is_gpu and started == 1:
                torch.cuda.synchronize()
        taken.append((clock() - start) / _CALLS)
    return min(taken)
