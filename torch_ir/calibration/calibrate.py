"""Calibrate a device: measure its operators on grids of sizes, and fit what predicts other sizes.

device = calibrate("cpu", minutes=2)
device.save("cpu.json")
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_ir.analysis.devices.calibration import CPU, CUDA, KINDS, WARM, Calibration, GridKey
from torch_ir.analysis.devices.operator_families import AXES, BY_BYTES, POINTWISE, VIEW
from torch_ir.analysis.devices.time_grid import Grid, Index, fitted
from torch_ir.calibration.grid_sizes import axes_of, keys_of, rounds_of
from torch_ir.calibration.measure_overheads import measure_overheads
from torch_ir.calibration.operator_cases import CASES, Bench
from torch_ir.calibration.timers import CpuTimer, CudaTimer, Timer
from torch_ir.errors import DeviceError, did_you_mean
from torch_ir.ir import IR

Progress = Callable[[str, int, int], None]
DTYPES: dict[str, tuple[str, ...]] = {CPU: ("float32",), CUDA: ("float32", "bfloat16")}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CACHE = 32 << 20
_LEAST_SHARE = 0.02  # of a measured time that is not dispatch
_TINY = 4.0


class Point(NamedTuple):
    """One measurement: a grid, and an index in it."""

    key: GridKey
    index: Index


def calibrate(
    device: str = CPU,
    *,
    minutes: float = 5.0,
    dtypes: Sequence[str] = (),
    compiled: Callable[[IR], Callable[..., Any]] | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Calibration:
    """Measure the operators of a device for at most about so many minutes, and return the fitted times.

    `dtypes` are float32 and bfloat16, by default float32 on a CPU and both on a GPU. A CPU is measured with torch's
    current number of threads. With `compiled`, which compiles a graph, the overhead of a compiled run is measured.
    """
    place, chosen = _checked(device, minutes, dtypes)
    timer: Timer = CudaTimer() if place.type == CUDA else CpuTimer()
    cache = cache_bytes(place)
    deadline = time.monotonic() + 60 * minutes
    measured: dict[GridKey, dict[Index, float]] = {key: {} for key in keys_of(place.type, chosen)}
    with torch.no_grad():
        families = [VIEW, *dict.fromkeys(key.family for key in measured)]
        dispatch = {family: timer.dispatch(_tiny(family, place, cache)) for family in families}
        points = _points(place.type, chosen)
        for number, (key, index) in enumerate(points):
            if time.monotonic() > deadline and measured[key]:
                continue
            progress(f"measuring {key.family} in {key.dtype}", number, len(points))
            started = dispatch[key.family] if place.type == CPU else 0.0
            seconds = _measured(timer, _bench(key, place, cache), key, place.type, index)
            measured[key][index] = max(seconds - started, _LEAST_SHARE * seconds)
        progress("measuring runs", len(points), len(points))
        overheads = measure_overheads(place, compiled)
    grids = {key: fitted(axes_of(key.family, place.type), found) for key, found in measured.items()}
    return Calibration(
        *_best(grids),
        name=device_name(place),
        kind=place.type,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        cache=float(cache),
        grids=grids,
        dispatch=dispatch,
        overheads=overheads,
    )


def _checked(device: str, minutes: float, dtypes: Sequence[str]) -> tuple[torch.device, tuple[str, ...]]:
    if device not in KINDS:
        raise DeviceError(f"cannot calibrate {device!r:.40}{did_you_mean(device, KINDS)}; expected cpu or cuda")
    if device == CUDA and not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA device on this machine; calibrate the CPU instead")
    if not 0 < minutes < 24 * 60:
        raise DeviceError(f"a calibration takes more than 0 minutes and at most a day, not {minutes:g}")
    for dtype in dtypes:
        if dtype not in DTYPES[CUDA]:
            raise DeviceError(f"cannot calibrate {dtype!r:.40}{did_you_mean(dtype, DTYPES[CUDA])}; expected float32 or bfloat16")
    return torch.device(device), tuple(dict.fromkeys(dtypes)) or DTYPES[device]


def _points(kind: str, dtypes: tuple[str, ...]) -> list[Point]:
    """Return all measurements: coarse grids before fine ones, and all families side by side, least work first."""
    ranked = [
        ((number, rank / len(found)), Point(key, index))
        for key in keys_of(kind, dtypes)
        for number, found in enumerate(rounds_of(key.family, kind))
        for rank, index in enumerate(found)
    ]
    return [point for _, point in sorted(ranked, key=lambda each: each[0])]


def _bench(key: GridKey, place: torch.device, cache: int) -> Bench:
    return Bench(place, getattr(torch, key.dtype), cache, is_cold=key.weights != WARM)


def _tiny(family: str, place: torch.device, cache: int) -> list[Callable[[], Any]]:
    """Return a call of the least work of a family."""
    sizes = [1.0] if family in BY_BYTES else [_TINY] * len(AXES[family])
    return CASES[family](Bench(place, torch.float32, cache, is_cold=False), sizes)


def _measured(timer: Timer, bench: Bench, key: GridKey, kind: str, index: Index) -> float:
    sizes = [axis[number] for axis, number in zip(axes_of(key.family, kind), index, strict=True)]
    return timer.kernel(CASES[key.family](bench, sizes))


def _best(grids: dict[GridKey, Grid]) -> tuple[float, float]:
    """Return the best FLOPs per second of a matrix product, and bytes per second of the largest pointwise operator."""
    peak, bandwidth = 1.0, 1.0
    for key, grid in grids.items():
        if key.family == "matmul":
            from math import prod

            from torch_ir.analysis.devices.time_grid import indices

            for index, seconds in zip(indices(grid.axes), grid.seconds, strict=True):
                sizes = [axis[number] for axis, number in zip(grid.axes, index, strict=True)]
                peak = max(peak, 2 * prod(sizes) / seconds)
        elif key.family == POINTWISE:
            bandwidth = max(bandwidth, grid.axes[0][-1] / grid.seconds[-1])
    return peak, bandwidth


def cache_bytes(place: torch.device) -> int:
    """Return the size of the last-level cache of a device."""
    if place.type == CUDA:
        return int(torch.cuda.get_device_properties(place).L2_cache_size)
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    found = [int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes if size[:-1].isdecimal() and size[-1] in "KM"]
    return max(found, default=_UNKNOWN_CACHE)


def device_name(place: torch.device) -> str:
    """Return the name of a device as its vendor gives it."""
    if place.type == CUDA:
        return str(torch.cuda.get_device_name(place))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), "") or platform.processor() or platform.machine() or "CPU"
