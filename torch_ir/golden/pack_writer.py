"""Write the files of a golden pack: shards as values arrive, in a folder that appears atomically."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import ExecutionError, MissingExtraError, SerializationError, first_line
from torch_ir.golden.folders import new_folder
from torch_ir.golden.pack import INDEX, Shard, Value, file_digest, is_index, stored
from torch_ir.ops.torch_types import dtype_name

SHARD_BYTES = 256 << 20


class Shards:
    """Writes tensors to numbered files as they arrive, buffering at most one file."""

    def __init__(self, folder: Path, shard_bytes: int, max_bytes: int | None) -> None:
        try:
            from safetensors import SafetensorError
            from safetensors.torch import save_file
        except ImportError:
            raise MissingExtraError("writing a golden pack", "safetensors", "safetensors") from None
        self.save, self.error = save_file, SafetensorError
        self.folder, self.shard_bytes, self.max_bytes = folder, shard_bytes, max_bytes
        self.total = 0
        self.waiting: dict[str, dict[str, torch.Tensor]] = {}
        self.sizes: Counter[str] = Counter()
        self.written: list[Shard] = []
        self.numbers: Counter[str] = Counter()

    def put(self, group: str, value: Value, tensor: Any) -> Value:
        """Add a tensor; return its record with shape, dtype and file."""
        tensor = torch.as_tensor(tensor)
        if not is_dense(tensor):
            raise ExecutionError(f"{value.name!r} is not a dense tensor and cannot be stored in a pack")
        how, plain = stored(tensor, dtype_name(tensor.dtype))
        self.total += plain.nbytes
        if self.max_bytes is not None and self.total > self.max_bytes:
            raise ExecutionError(f"the pack exceeds {self.max_bytes} bytes; select fewer nodes with only or every")
        if self.sizes[group] and self.sizes[group] + plain.nbytes > self.shard_bytes:
            self._write(group)
        self.waiting.setdefault(group, {})[value.name] = plain.clone()
        self.sizes[group] += plain.nbytes
        shape, dtype = list(tensor.shape), dtype_name(tensor.dtype)
        return replace(value, shape=shape, dtype=dtype, stored=how, file=self._name(group))

    def close(self) -> list[Shard]:
        for group in list(self.waiting):
            self._write(group)
        return self.written

    def _name(self, group: str) -> str:
        return f"{group}-{self.numbers[group] + 1:05}.safetensors"

    def _write(self, group: str) -> None:
        path = self.folder / self._name(group)
        try:
            self.save(self.waiting.pop(group), path)
        except self.error as error:  # it wraps system errors
            raise OSError(first_line(error)) from None
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        self.written.append(Shard(path.name, path.stat().st_size, file_digest(path)))
        self.numbers[group] += 1
        self.sizes[group] = 0


def is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor is strided and not quantised."""
    return value.layout == torch.strided and not value.is_quantized


@contextmanager
def new_pack(target: Path) -> Iterator[Path]:
    """Yield a folder that replaces `target` at the end; it is removed after an error."""
    _refuse_other_content(target)
    with new_folder(target) as folder:
        yield folder
        _refuse_other_content(target)  # it may have appeared meanwhile


def _refuse_other_content(target: Path) -> None:
    """Raise SerializationError unless the target is a pack, an empty folder or missing."""
    if not target.exists() and not target.is_symlink():
        return
    is_folder = target.is_dir() and not target.is_symlink()
    if not is_folder or not (is_index(target / INDEX) or not any(target.iterdir())):
        raise SerializationError(f"{target} exists and is not a golden pack; it was not changed")
