"""Tensors in .safetensors files, read one at a time when needed.

A tensor is read into its own memory, which is returned to the system when the tensor is freed. Files are not mapped: so
tensors are aligned for torch's kernels, limits on the address space apply, and a file that is truncated meanwhile
raises an error instead of crashing the process.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import torch

from torch_ir.errors import SerializationError, WeightLoadError
from torch_ir.ir import IR
from torch_ir.ir.files.regular_file import open_regular
from torch_ir.ir.files.side_file import SAFETENSORS
from torch_ir.ir.json.json_text import parse_json
from torch_ir.ops.torch_types import TORCH_DTYPES

_DTYPES = {
    **{code: TORCH_DTYPES[name] for name, code in SAFETENSORS.items()},
    "C64": torch.complex64,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
_MAX_HEADER = 100_000_000  # bytes, the format's limit
_LARGEST = 1 << 48  # of a dimension or an offset; torch multiplies dimensions before it looks for a 0
_MAX_RANK = 128  # the product of a million large sizes takes hours to compute
_Stamp = tuple[int, int]  # size and modification time, to detect changes


@dataclass(frozen=True)
class StoredTensor:
    """The location of a tensor in a file, with its dtype and shape."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    stamp: _Stamp

    is_meta = False

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def load(self) -> torch.Tensor:
        """Read the tensor into new memory."""
        return self.elements(0, math.prod(self.shape)).view(self.shape)

    def elements(self, start: int, stop: int) -> torch.Tensor:
        """Read some of the elements, in file order."""
        if start >= stop:
            return torch.empty(0, dtype=self.dtype, device="cpu")
        size = (stop - start) * self.dtype.itemsize
        try:
            memory = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)  # not the heap, which may stay fragmented
            rest = memoryview(memory)
            with os.fdopen(open_regular(self.path, follow=True), "rb", buffering=0) as file:
                if _stamp(file.fileno()) != self.stamp:
                    raise WeightLoadError(f"{self.path} was changed after it was opened; open it again")
                file.seek(self.offset + start * self.dtype.itemsize)
                while rest:  # one call reads 2 GiB at most
                    rest = rest[_read_into(file, rest, self.path) :]
        except OSError as error:
            raise WeightLoadError(f"cannot read {self.path}: {error.strerror or error}") from None
        return torch.frombuffer(memory, dtype=torch.uint8).view(self.dtype)


Weight = Union[torch.Tensor, StoredTensor]


def loaded(weight: Weight, device: torch.device | None = None) -> torch.Tensor:
    """Return a weight as a tensor, reading it if it is in a file."""
    tensor = weight.load() if isinstance(weight, StoredTensor) else weight
    return tensor if device is None else tensor.to(device)


def device_of(ir: IR, weights: Iterable[Weight]) -> torch.device | None:
    """Return the device of a graph's weights in order, if they have one and it is not that of the graph.

    Values in the graph and in files have none.
    """
    given = zip(ir.params, weights, strict=True)
    found = {
        value.device
        for param, value in given
        if not isinstance(value, StoredTensor) and (param.param is None or param.param.data is None)
    }
    device = found.pop() if len(found) == 1 else None
    return None if device is None or device.type == "meta" or ir.device in (device.type, str(device)) else device


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors listed in the header of a .safetensors file; nothing else is read."""
    entries, first, stamp = read_header(path)
    try:
        found = {key: _placed(path, entry, first, stamp) for key, entry in entries.items()}
        _check_places(found.values(), first, stamp)
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from None


def read_header(path: Path) -> tuple[dict[str, Any], int, _Stamp]:
    """Return the entries of a .safetensors header, the offset of the data, and the file's stamp."""
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            stamp = _stamp(file.fileno())
            length = int.from_bytes(file.read(8), "little")
            if length > min(_MAX_HEADER, stamp[0] - 8):
                raise ValueError(f"a header of {length} bytes is too long")
            entries = parse_json(file.read(length).decode())
            entries.pop("__metadata__", None)
            return entries, 8 + length, stamp
    except OSError as error:
        raise WeightLoadError(f"cannot read {path}: {error.strerror or error}") from None
    except (SerializationError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> WeightLoadError:
    return WeightLoadError(f"{path} is not a safetensors file: {type(error).__name__}: {error}")


def _placed(path: Path, entry: Any, first: int, stamp: _Stamp) -> StoredTensor:
    """Return one entry of a header, if its bytes exist."""
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"unknown dtype {entry['dtype']!r:.80}")
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    if len(shape) > _MAX_RANK:
        raise ValueError(f"a tensor has {len(shape)} dimensions, more than {_MAX_RANK}")
    start, stop = entry["data_offsets"]
    if any(type(number) is not int or not 0 <= number <= _LARGEST for number in (*shape, start, stop)):
        raise ValueError(f"{entry!r:.80} has an invalid size or offset")
    if stop - start != math.prod(shape) * dtype.itemsize or first + stop > stamp[0]:
        raise ValueError(f"{entry!r:.80} does not match the bytes of the file")
    return StoredTensor(path, dtype, shape, first + start, stamp)


def _check_places(tensors: Iterable[StoredTensor], first: int, stamp: _Stamp) -> None:
    """Check that the tensors cover all bytes without overlap."""
    end = first
    for start, size in sorted((tensor.offset, tensor.size) for tensor in tensors):
        if start != end:
            raise ValueError("tensors overlap, or there is a gap between them")
        end += size
    if end != stamp[0]:
        raise ValueError("some bytes belong to no tensor")


def _stamp(file: int) -> _Stamp:
    facts = os.fstat(file)
    return facts.st_size, facts.st_mtime_ns


def _read_into(file: Any, target: memoryview, path: Path) -> int:
    count = file.readinto(target)
    if not count:
        raise WeightLoadError(f"{path} is truncated in the middle of a tensor")
    return int(count)
