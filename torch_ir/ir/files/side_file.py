"""Side files: large constants in a `.safetensors` file beside the graph, named by content and read at first use.

The safetensors header is for other readers only. The graph's file states the offset and digest of each constant; only
bytes that match their digest are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch_ir.errors import MissingFileError, SerializationError
from torch_ir.ir.checks.limits import Limits, allow_more
from torch_ir.ir.files.atomic_pair import Beside
from torch_ir.ir.files.atomic_write import draft, is_stream, without_link, write_bytes
from torch_ir.ir.files.locks import folder_lock
from torch_ir.ir.files.regular_file import IrregularFileError, open_regular
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.free_names import Names, fresh

_Read = TypeVar("_Read")
_LONG_NAME = 255 - len(".constants-0123456789ab.safetensors")  # bytes
INLINE_LIMIT = 1 << 16  # bytes; larger constants go to a side file, as base64 would take 88 KiB
_NAME = re.compile(r"[\w.+-]+\.constants-[0-9a-f]{12}\.safetensors")
# The dtypes that every safetensors reader supports, as it spells them; others are stored as plain bytes.
SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip

Place = dict[str, Any]  # {"file": name, "offset": of its bytes, "digest": of its bytes}


class SideFile:
    """The content of a side file for `target`, and the place of each constant in it."""

    def __init__(self, target: Path, constants: Iterable[tuple[str, TensorData]]) -> None:
        named = sorted(_named(constants).items(), key=lambda item: -DTYPES[item[0].dtype])  # for alignment
        header = safetensors_header((name, data.dtype, data.shape, data.size) for data, name in named)
        self.content = b"".join([header, *(data.raw for data, _ in named)])
        self.path = _beside(target).path(_sha256(self.content))
        self.places: dict[TensorData, Place] = {}
        offset = len(header)
        for data, _ in named:
            digest = f"sha256:{_sha256(data.raw)}"
            self.places[data] = {"file": self.path.name, "offset": offset, "digest": digest}
            offset += data.size


def _beside(target: Path) -> Beside:
    """Return the side files of a graph's file; invalid or overlong names are replaced by a digest."""
    plain = re.sub(r"[^\w.+-]", "_", target.name)
    if plain != target.name or len(plain.encode()) > _LONG_NAME:
        short = plain.encode()[: _LONG_NAME - 13].decode(errors="ignore")
        plain = f"{short}-{_sha256(os.fsencode(target.name))[:12]}"
    return Beside(target, f"{plain}.constants-")


def _named(constants: Iterable[tuple[str, TensorData]]) -> dict[TensorData, str]:
    """Name each distinct constant by its key, with a number if that is taken."""
    names: dict[TensorData, str] = {}
    taken = Names(["__metadata__"])  # reserved by the format
    for key, data in constants:
        if data not in names:
            names[data] = fresh(key, taken)
    return names


def safetensors_header(tensors: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """Return the header of a safetensors file of consecutive tensors, given as name, dtype, shape and size in bytes."""
    entries = {}
    start = 0
    for name, dtype, shape, size in tensors:
        known = SAFETENSORS.get(dtype)
        held = list(shape) if known else [size]
        entries[name] = {"dtype": known or "U8", "shape": held, "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_pair(target: Path, content: bytes, side: SideFile | None) -> None:
    """Write a graph's file and its side file atomically."""
    if side is not None:
        with draft(target) as new:
            new.write(side.content)
            new.complete()
            _beside(target).replace(content, {side.path: new})
    elif is_stream(target):
        write_bytes(target, content)
    else:
        _beside(target).replace(content, {})


def read_pair(path: Path, limits: Limits, read: Callable[[Folder], _Read]) -> _Read:
    """Read a graph's file and its side file, waiting if both are being replaced."""
    folder = without_link(path).parent
    try:
        return read(Folder(folder, limits))
    except MissingFileError:
        with folder_lock(folder, shared=True):
            return read(Folder(folder, limits))


def side_files(path: Path) -> list[Path]:
    """Return the side files of a graph's file that it references."""
    return _beside(without_link(path)).referenced()


class Folder:
    """The folder of a graph's file, in which side files are looked up."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._open: dict[str, _OpenFile] = {}

    def find(self, name: str, shape: tuple[int, ...], dtype: str, offset: int, digest: str, path: str) -> TensorData:
        """Return a constant that is read at first use; that the file is long enough is checked now."""
        if not _NAME.fullmatch(name):
            raise SerializationError(f"{name!r:.80} is not the name of a side file", f"{path}.file", rule="R16")
        if name not in self._open:
            self._open[name] = _OpenFile(self.path / name, self.limits, f"{path}.file")
        data = StoredData(shape, dtype, self._open[name], offset, digest)
        if not 0 <= offset <= self._open[name].size - data.size:
            message = f"{self.path / name} is truncated: it does not contain these bytes"
            raise SerializationError(message, f"{path}.offset", rule="R16")
        return data


class _OpenFile:
    """A side file kept open: a later save may remove its name, but the bytes stay readable."""

    def __init__(self, path: Path, limits: Limits, place: str) -> None:
        """Open `path`; `place` is the JSON path of the reference to it."""
        self.path = path
        try:
            self._file = os.fdopen(open_regular(path, follow=False), "rb")
        except IrregularFileError as error:
            raise SerializationError(f"{path} {error.strerror}", place, rule="R16") from None
        except OSError as error:
            kind = MissingFileError if isinstance(error, FileNotFoundError) else SerializationError
            message = f"cannot read the constants in {path}: {error.strerror or error}"
            raise kind(message, place, rule="R16") from None
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size > limits.file_bytes:
            message = f"{path}: {self.size} bytes are more than {limits.file_bytes}"
            raise SerializationError(message, place, rule="R2", hint=allow_more("file_bytes"))

    def read(self, start: int, size: int) -> bytes:
        with self._lock:  # threads share the position
            self._file.seek(start)
            return self._file.read(size)


class StoredData(TensorData):
    """A constant in a side file, read and checked at first use."""

    _where: tuple[_OpenFile, int, str]

    def __init__(self, shape: tuple[int, ...], dtype: str, file: _OpenFile, offset: int, digest: str) -> None:
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "_where", (file, offset, digest))
        self._check_facts()

    @cached_property
    def raw(self) -> bytes:
        file, offset, digest = self._where
        raw = file.read(offset, self.size)
        if f"sha256:{_sha256(raw)}" != digest:
            message = f"{file.path} is damaged: digest mismatch of a constant"
            raise SerializationError(message, rule="R16")
        self._check_bytes(raw)
        return raw

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorData, (self.shape, self.dtype, self.raw)


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
