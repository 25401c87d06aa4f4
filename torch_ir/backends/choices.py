"""Cache of the fastest back end for a graph, inputs and machine, shared between processes."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from torch_ir._version import __version__
from torch_ir.backends.table import installed_backends
from torch_ir.ir import IR
from torch_ir.ir.files.cache_folder import CachedTable
from torch_ir.ir.text.amounts import duration
from torch_ir.ops.torch_types import dtype_name

_MOST_BYTES = 1 << 26  # of the file of choices
_PACKAGES = ("torch", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Choice:
    """The fastest back end, the seconds per call of each, and why others failed."""

    backend: str
    seconds: Mapping[str, float]
    failed: Mapping[str, str]

    def __str__(self) -> str:
        if not self.backend:
            return "nothing was measured yet; the first call does that"
        ordered = sorted(self.seconds, key=self.seconds.__getitem__)
        times = ", ".join(f"{name} {duration(self.seconds[name])}" for name in ordered)
        wrong = [f"{name}: {reason}" for name, reason in self.failed.items()]
        return "; ".join([f"{self.backend} is the fastest", *filter(None, [times]), *wrong])


class Choices:
    """The file of choices; an unreadable one counts as empty and is overwritten."""

    def __init__(self) -> None:
        self._table = CachedTable("fastest.json", _MOST_BYTES)

    def get(self, key: str) -> Choice | None:
        """Return the choice for a key."""
        record = self._table.get(key)
        try:
            seconds = {name: float(value) for name, value in dict(record["seconds"]).items()}
            failed = {name: str(value) for name, value in dict(record["failed"]).items()}
            return Choice(str(record["backend"]), seconds, failed)
        except (TypeError, KeyError, ValueError, OverflowError):
            return None

    def keep(self, key: str, choice: Choice) -> None:
        """Store a choice, if the folder is writable."""
        self._table.keep(key, asdict(choice))


def key_of(ir: IR, values: Sequence[Any]) -> str:
    """Return a digest of everything that a choice depends on."""
    given = [(dtype_name(v.dtype), *v.shape) if isinstance(v, torch.Tensor) else type(v).__name__ for v in values]
    versions = {name: _version(name) for name in _PACKAGES}
    about = [__version__, versions, sorted(installed_backends()), torch.get_num_threads(), _processor(), given]
    return hashlib.sha256(f"{ir.to_json()}{about}".encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    """Return the name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
