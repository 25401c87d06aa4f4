"""The settings of torch that affect the bits of a result, to be copied to another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.backends import mha, mkldnn

from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name

# Variables that choose the instructions, the precision and the threads of torch's CPU libraries when they are loaded.
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "GLIBC_TUNABLES",
    "ONEDNN_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA", "DNNL_CPU_ISA_HINTS", "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "MKL_DISABLE_FAST_MM", "MKL_NUM_STRIPES", "MKL_NUM_THREADS",
    "MKL_DOMAIN_NUM_THREADS", "MKL_DYNAMIC", "OMP_NUM_THREADS", "OMP_DYNAMIC", "OMP_THREAD_LIMIT",
    "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
)  # fmt: skip
_FILLED: Any = torch.utils.deterministic


def _deterministic() -> list[bool]:
    return [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()]


def _set_deterministic(value: list[bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_filled(value: bool) -> None:
    _FILLED.fill_uninitialized_memory = value


def _set_mkldnn(value: bool) -> None:
    mkldnn.enabled = value  # type: ignore[assignment]  # torch annotates the module, not its replacement


# How each is read and set.
_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "default dtype": (
        lambda: dtype_name(torch.get_default_dtype()),
        lambda name: torch.set_default_dtype(TORCH_DTYPES[name]),
    ),
    "deterministic": (_deterministic, _set_deterministic),
    "fill uninitialised": (lambda: _FILLED.fill_uninitialized_memory, _set_filled),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "mkldnn": (lambda: bool(mkldnn.enabled), _set_mkldnn),
    "attention fast path": (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
}


def settings() -> dict[str, Any]:
    """Return the current settings as plain data."""
    return {name: read() for name, (read, _) in _SWITCHES.items()}


def apply_settings(values: Mapping[str, Any]) -> None:
    """Apply the settings that differ; setting some imports large parts of torch."""
    for name, value in values.items():
        read, write = _SWITCHES[name]
        if read() != value:
            write(value)
