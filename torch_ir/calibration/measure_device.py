"""Calibrate a device: measure its operators on grids of sizes, and fit what predicts other sizes.

device = calibrate("cpu", minutes=2)
save_device(device, "cpu.json")
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torch_ir.analysis.devices.calibration import CPU, CUDA, KINDS, WARM, Calibration, GridKey
from torch_ir.analysis.devices.operator_families import AXES, BY_BYTES, POINTWISE, VIEW
from torch_ir.analysis.devices.time_grid import Index, fitted
from torch_ir.calibration.grid_sizes import axes_of, keys_of, rounds_of, sizes_at
from torch_ir.calibration.measure_overheads import Compile, WholeRuns
from torch_ir.calibration.operator_cases import CASES, Bench, Call
from torch_ir.calibration.timers import CpuTimer, CudaTimer, Timer
from torch_ir.errors import DeviceError, did_you_mean

Progress = Callable[[str, int, int], None]
DTYPES: dict[str, tuple[str, ...]] = {CPU: ("float32",), CUDA: ("float32", "bfloat16")}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CACHE = 32 << 20
_UNSUPPORTED = (RuntimeError, AttributeError)  # what torch raises for an operator that a build or a dtype lacks
_LEAST_SHARE = 0.02  # of a measured time that is not dispatch
_LEAST_POOL, _MOST_POOL = 1 << 26, 1 << 29  # bytes
_TINY = 8.0
_USUAL = {
    "rows": 128.0, "columns": 768.0, "depth": 768.0, "batch": 12.0, "places": 784.0, "inputs": 64.0, "outputs": 64.0,
    "channels": 64.0, "kernel": 9.0, "heads": 12.0, "queries": 128.0, "keys": 128.0, "width": 64.0, "bytes": 4e5,
}  # fmt: skip
_HOST_TURNS = 10  # how often the host is measured while the points are; other programs slow it down for seconds


class Measurement(NamedTuple):
    """One measurement: a grid, and a place in it."""

    key: GridKey
    place: Index


def calibrate(
    device: str = CPU,
    *,
    minutes: float = 5.0,
    dtypes: Sequence[str] = (),
    compiled: Compile | None = None,
    progress: Progress = lambda text, done, total: None,
) -> Calibration:
    """Measure the operators of a device for at most about so many minutes, and return the fitted times.

    `dtypes` are float32 and bfloat16, by default float32 on a CPU and both on a GPU. A CPU is measured with torch's
    current number of threads. `compiled` compiles a graph with weights, such as `torch_ir.compile`; without it, the
    overheads of compiled code are those of the executor.
    """
    place, chosen = _checked(device, minutes, dtypes)
    timer: Timer = CudaTimer() if place.type == CUDA else CpuTimer()
    keys = keys_of(place.type, chosen)
    measured: dict[GridKey, dict[Index, float]] = {key: {} for key in keys}
    families = [VIEW, *dict.fromkeys(key.family for key in keys)]
    cache = cache_bytes(place)
    pools = {dtype: _pool(place, dtype, cache) for dtype in chosen}
    benches = {dtype: Bench(place, pool.dtype, pool, is_cold=False) for dtype, pool in pools.items()}
    dispatch: dict[str, dict[str, float]] = {dtype: {} for dtype in chosen}
    with torch.no_grad():
        _measure_dispatch(timer, families, benches, dispatch)
        progress("preparing whole runs", 0, 1)
        runs = WholeRuns(place, pools[chosen[-1]].dtype, compiled)
        deadline = time.monotonic() + 60 * minutes
        keys = [key for key in keys if key.family in dispatch[key.dtype]]
        points = _points(place.type, keys)
        host_turns = {len(points) * turn // _HOST_TURNS for turn in range(1, 2 * _HOST_TURNS)}
        for number, (key, index) in enumerate(chain(points, points)):  # again if time is left: the least counts
            if time.monotonic() > deadline and measured[key]:
                continue
            progress(f"measuring {key.family} in {key.dtype}", number, 2 * len(points))
            if number in host_turns:
                _measure_dispatch(timer, families, benches, dispatch)
                runs.measure()
            bench = Bench(place, pools[key.dtype].dtype, pools[key.dtype], key.weights != WARM)
            with _if_supported():
                seconds = timer.kernel(CASES[key.family](bench, sizes_at(key.family, place.type, index)))
                measured[key][index] = min(seconds, measured[key].get(index, seconds))
        progress("measuring whole runs", 1, 1)
        _measure_dispatch(timer, families, benches, dispatch)
        runs.measure()
        kernels = {
            key: _kernels(found, place, dispatch[key.dtype][key.family]) for key, found in measured.items() if found
        }
        found = Calibration(
            *_best(place.type, kernels),
            name=device_name(place),
            kind=place.type,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            cache=float(cache),
            grids={key: fitted(axes_of(key.family, place.type), each) for key, each in kernels.items()},
            dispatch=dispatch,
        )
        return replace(found, overheads=runs.overheads(found))


def _kernels(measured: Mapping[Index, float], place: torch.device, dispatch: float) -> dict[Index, float]:
    """Return the times of kernels: on a CPU, what was measured includes the dispatch."""
    if place.type != CPU:
        return dict(measured)
    return {index: max(seconds - dispatch, _LEAST_SHARE * seconds) for index, seconds in measured.items()}


def _checked(device: str, minutes: float, dtypes: Sequence[str]) -> tuple[torch.device, tuple[str, ...]]:
    if device not in KINDS:
        raise DeviceError(f"cannot calibrate {device!r:.40}{did_you_mean(device, KINDS)}; expected cpu or cuda")
    if device == CUDA and not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA device on this machine; calibrate the CPU instead")
    if not 0 < minutes < 24 * 60:
        raise DeviceError(f"a calibration takes more than 0 minutes and at most a day, not {minutes:g}")
    for dtype in dtypes:
        if dtype not in DTYPES[CUDA]:
            raise DeviceError(
                f"cannot calibrate {dtype!r:.40}{did_you_mean(dtype, DTYPES[CUDA])}; expected float32 or bfloat16"
            )
    return torch.device(device), tuple(dict.fromkeys(dtypes)) or DTYPES[device]


def _points(kind: str, keys: Sequence[GridKey]) -> list[Measurement]:
    """Return all measurements: coarse grids before fine ones, and all families side by side, least work first."""
    ranked = [
        ((number, rank / len(found)), Measurement(key, index))
        for key in keys
        for number, found in enumerate(rounds_of(key.family, kind))
        for rank, index in enumerate(found)
    ]
    return [point for _, point in sorted(ranked, key=lambda each: each[0])]


def _pool(place: torch.device, dtype: str, cache: int) -> Tensor:
    """Return random values that exceed the cache, as far as memory allows."""
    size = min(max(2 * cache, _LEAST_POOL), _MOST_POOL)
    kind = getattr(torch, dtype)
    return torch.randn(size // kind.itemsize, device=place).to(kind)


def _measure_dispatch(
    timer: Timer, families: list[str], benches: Mapping[str, Bench], least: Mapping[str, dict[str, float]]
) -> None:
    """Time how an operator of each family starts, by dtype; families that this torch lacks are left out."""
    for dtype, bench in benches.items():
        for family in families:
            with _if_supported():
                seconds = timer.dispatch(_started(family, bench))
                least[dtype][family] = min(seconds, least[dtype].get(family, seconds))


def _started(family: str, bench: Bench) -> list[Call]:
    """Return calls of a family whose start is timed: on a CPU of little work, as the kernel is part of the time.

    On a GPU of usual sizes, as the number of kernels and their choice depend on them.
    """
    if bench.device.type == CUDA:
        return CASES[family](bench, [_USUAL[axis] for axis in AXES[family]])
    if family in BY_BYTES:
        return CASES[family](bench, [1.0])
    sizes = [_TINY] * len(AXES[family])
    if "kernel" in AXES[family]:
        sizes[-1] = 1.0
    return CASES[family](bench, sizes)


@contextmanager
def _if_supported() -> Iterator[None]:
    """Skip an operator that this torch lacks, or that a GPU cannot start at these sizes.

    After other errors of a kernel no later call runs, so they end the calibration.
    """
    try:
        yield
    except torch.AcceleratorError as error:
        try:
            torch.ones(1, device=CUDA).item()
        except torch.AcceleratorError:
            raise DeviceError(f"the GPU stopped with an error: {str(error).partition(chr(10))[0]}") from error
    except _UNSUPPORTED:
        pass


def _best(kind: str, measured: Mapping[GridKey, Mapping[Index, float]]) -> tuple[float, float]:
    """Return the best FLOPs per second of a matrix product, and bytes per second of the largest pointwise operator."""
    rates = [
        2 * prod(sizes_at(key.family, kind, index)) / seconds
        for key, found in measured.items()
        if key.family == "matmul"
        for index, seconds in found.items()
    ]
    largest = [max(found.items()) for key, found in measured.items() if key.family == POINTWISE and found]
    return max(rates), max(sizes_at(POINTWISE, kind, index)[0] / seconds for index, seconds in largest)


def cache_bytes(place: torch.device) -> int:
    """Return the size of the last-level cache of a device."""
    if place.type == CUDA:
        return int(torch.cuda.get_device_properties(place).L2_cache_size)
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    found = [
        int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes if size[:-1].isdecimal() and size[-1] in "KM"
    ]
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
