"""What the choice of `backend="auto"` costs, which back end it is, and how far that is from the fastest."""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import torch_ir
from benchmarks.measure import digits, measured_alone, table
from benchmarks.models import SERVED, Case
from torch_ir.backends import compile, installed_backends
from torch_ir.errors import TorchIRError
from torch_ir.run.benchmark import race, threads

THREADS = 1  # so that CPU time is the time of a call, also on a busy machine
ROUNDS = 5
HEADER = [
    "model", "CPU time of the choice", "wall time", "measured", "chosen", "fastest", "chosen / fastest, CPU time",
]  # fmt: skip


def run() -> str:
    """Return a row per model, each measured in a process of its own with an empty cache of choices."""
    return table(HEADER, [[case.name, *_row(measured_alone("benchmarks.auto_choice", case.name))] for case in SERVED])


def _row(found: Any) -> list[str]:
    if found is None:
        return ["failed"] * (len(HEADER) - 1)
    seconds = found["seconds"]
    fastest = min(seconds, key=seconds.__getitem__)
    spent = [f"{digits(found[clock])} s" for clock in ("cpu", "wall")]
    ratio = f"{seconds[found['chosen']] / seconds[fastest]:.2f}"
    return [*spent, ", ".join(found["measured"]), found["chosen"], fastest, ratio]


def measured(case: Case) -> dict[str, Any]:
    """Choose a back end, then time all that are installed, interleaved."""
    torch.manual_seed(0)
    model, inputs = case.build().eval(), case.inputs()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs, strict=False)
    actions: dict[str, Callable[[], Any]] = {}
    with tempfile.TemporaryDirectory() as folder, threads(THREADS), torch.no_grad():
        os.environ["TORCH_IR_CACHE"] = folder
        wall, cpu = time.perf_counter(), _cpu()
        compiled = compile(ir, model.state_dict(), backend="auto")
        compiled(**inputs)
        wall, cpu = time.perf_counter() - wall, _cpu() - cpu
        considered = [name for name, found in installed_backends().items() if found.races]
        for name in considered:
            try:
                actions[name] = _call(compile(ir, model.state_dict(), backend=name), inputs)
            except TorchIRError:
                continue  # refused, as by `auto`
        found = race(actions, ROUNDS, clock=time.process_time)
    skipped = [name for name in considered if f"{name}: " in compiled.why]
    return {
        "wall": wall,
        "cpu": cpu,
        "chosen": compiled.backend,
        "measured": [name for name in considered if name not in skipped],
        "seconds": {name: timing.time.median for name, timing in found.items()},
    }


def _call(compiled: torch_ir.backends.Compiled, inputs: dict[str, Any]) -> Callable[[], Any]:
    return lambda: compiled(**inputs)


def _cpu() -> float:
    """Return the CPU seconds of this process and of those that it started, such as compilers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    print(json.dumps(measured(next(case for case in SERVED if case.name == sys.argv[1]))))
