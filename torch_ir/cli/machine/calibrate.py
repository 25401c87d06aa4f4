"""`torch-ir calibrate`: measure the operators of this machine, for `cost --device this`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, check_least, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from torch_ir.analysis import Calibration
    from torch_ir.ir import IR

SUMMARY = "measure this machine's operators, to predict times"
EXAMPLES = """

--device cuda
--threads 1 --minutes 10 -o cpu.json
--dtype float32 --dtype bfloat16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what to measure (default: cpu)")
    argument(parser, "--minutes N", "time for operators (default: 5)", type=float, default=5.0)
    argument(parser, "--threads N", "threads of the CPU (default: torch's)", type=int)
    argument(parser, "--dtype DTYPE...", "float32 or bfloat16; repeatable (default: float32 on a CPU, both on a GPU)")
    argument(parser, "--no-compiler", "do not measure runs of compiled code")
    argument(parser, "-o --output FILE", "the device file (default: that of `--device this`)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    check_least(arguments, 1, "threads")
    from torch_ir.analysis import save_device
    from torch_ir.analysis.devices.device_file import device_path
    from torch_ir.calibration import calibrate
    from torch_ir.run.benchmark import threads

    with threads(arguments.threads):
        found = calibrate(
            arguments.device,
            minutes=arguments.minutes,
            dtypes=arguments.dtype,
            compiled=None if arguments.no_compiler else _compiling(arguments.device),
            progress=show_progress,
        )
    path = arguments.output or str(device_path(arguments.device))
    save_device(found, path)
    show(arguments, lambda: {"file": path, **_facts(found)}, lambda: _text(found, path))
    return 0


def _compiling(device: str) -> Callable[[IR, Mapping[str, Tensor]], Callable[..., Any]]:
    from torch_ir.backends import compile

    return lambda ir, weights: compile(ir, weights, verify=False, device=device)


def _facts(found: Calibration) -> dict[str, Any]:
    names = ("name", "kind", "threads", "torch", "peak", "bandwidth", "cache")
    return {**{name: getattr(found, name) for name in names}, "grids": len(found.grids)}


def _text(found: Calibration, path: str) -> str:
    from torch_ir.ir.text.amounts import human, plural

    figures = f"{human(round(found.peak), 'FLOP/s')}, {human(round(found.bandwidth), 'B/s')}"
    measured = f"{plural(len(found.grids), 'grid')}, {plural(found.threads, 'thread')}"
    return f"{found.name}: {figures} at best; {measured} -> {path}"
