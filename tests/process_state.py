"""The process state that a library must not change, as plain data for comparison."""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torch_ir.run.numeric_settings import settings

_LOGGERS = ("", "torch", "torch_ir", "torch._subclasses.fake_tensor", "torch.fx", "torch._dynamo", "torch.export")


def process_state() -> dict[str, Any]:
    """Generators, modes, threads, files, environment, handlers, modules, logging, warnings, garbage collection."""
    gc.collect()  # else files that nothing refers to are closed at some time in between
    return {
        **settings(),
        "torch's generator": torch.get_rng_state().numpy().tobytes(),
        "Python's generator": random.getstate(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "default device": str(torch.get_default_device()),
        "namespaces of torch.ops": sorted(name for name in vars(torch.ops) if not name.startswith("_")),
        "operators": len(torch._C._dispatch_get_all_op_names()),
        "threads": threading.active_count(),
        "open files": sorted(_open_files()),
        "folder": (Path.cwd(), sorted(os.listdir())),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "modules": set(sys.modules),
        "path": list(sys.path),
        "limits": (sys.getrecursionlimit(), sys.gettrace(), sys.getprofile()),
        "warnings": [str(entry) for entry in warnings.filters],
        "logging": [(logging.getLogger(name).level, logging.getLogger(name).disabled) for name in _LOGGERS],
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0),
    }


@contextmanager
def new_objects_alone() -> Iterator[None]:
    """Collect and count only objects created from here on: a test process has millions, seconds for each collection."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differences."""
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def _open_files() -> list[str]:
    try:
        links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    except OSError:  # only Linux has it
        return []
    return [os.readlink(link) for link in links if os.path.exists(link)]


def resident_bytes() -> int:
    """Return the resident memory of the process; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def living_objects() -> int:
    """Return the number of objects that the collector tracks, after a collection."""
    gc.collect()
    return len(gc.get_objects())
