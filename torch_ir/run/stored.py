"""Tensors in .safetensors files, read one at a time when they are needed.

A tensor is read into memory of its own, which the system has back as soon as the tensor goes. Files are not mapped: so
their tensors lie as torch's kernels like it, a limit on the address space holds too, and a file that is cut short
meanwhile is an error and not the end of the process.
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
from torch_ir.ir.files.regular_file import open_regular
from torch_ir.ir.json.json_text import parse_json

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
_MAX_HEADER = 100_000_000  # bytes, the format's own limit
_Stamp = tuple[int, int]  # what tells that a file is still the same: its size and when it was written


@dataclass(frozen=True)
class StoredTensor:
    """Where the elements of a tensor lie in a file, and what they are."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    stamp: _Stamp

    is_meta = False

    @property
    def size(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def load(self) -> torch.Tensor:
        """The tensor, in new memory."""
        return self.elements(0, math.prod(self.shape)).view(self.shape)

    def elements(self, start: int, stop: int) -> torch.Tensor:
        """Some of the elements, in the order in which they lie."""
        if start >= stop:
            return torch.empty(0, dtype=self.dtype, device="cpu")
        size = (stop - start) * self.dtype.itemsize
        try:
            memory = mmap.mmap(-1, size, access=mmap.ACCESS_COPY)  # not the heap, where a gap may remain of it
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
    """A weight as a tensor, wherever it lies."""
    tensor = weight.load() if isinstance(weight, StoredTensor) else weight
    return tensor if device is None else tensor.to(device)


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors that the header of a .safetensors file lists; nothing else of the file is read."""
    entries, first, stamp = read_header(path)
    try:
        found = {key: _placed(path, entry, first, stamp) for key, entry in entries.items()}
        _check_places(found.values(), first, stamp)
        return found
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from None


def read_header(path: Path) -> tuple[dict[str, Any], int, _Stamp]:
    """What a .safetensors file says of each tensor, where their bytes begin, and what tells that it is the same."""
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
    """One entry of a header, if it is about bytes that are there."""
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
        raise ValueError(f"{entry!r:.80} has a size or place that is no number")
    if stop - start != math.prod(shape) * dtype.itemsize or first + stop > stamp[0]:
        raise ValueError(f"{entry!r:.80} does not fit the bytes that there are")
    return StoredTensor(path, dtype, shape, first + start, stamp)


def _check_places(tensors: Iterable[StoredTensor], first: int, stamp: _Stamp) -> None:
    """The bytes of the tensors are all that there are, and none is in two of them."""
    end = first
    for start, size in sorted((tensor.offset, tensor.size) for tensor in tensors):
        if start != end:
            raise ValueError("tensors overlap, or there is a gap between them")
        end += size
    if end != stamp[0]:
        raise ValueError("there are bytes that belong to no tensor")


def _stamp(file: int) -> _Stamp:
    facts = os.fstat(file)
    return facts.st_size, facts.st_mtime_ns


def _read_into(file: Any, target: memoryview, path: Path) -> int:
    count = file.readinto(target)
    if not count:
        raise WeightLoadError(f"{path} ends in the middle of a tensor")
    return int(count)
