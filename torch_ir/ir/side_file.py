"""Large constants beside the file: a `.safetensors` file under a name made of its contents, read when first asked for.

The file's own header is for other readers. Here, the graph's file says where each constant begins and what its digest
is, so that nothing of the side file is trusted but bytes that were checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from torch_ir.errors import MissingFileError, SerializationError
from torch_ir.ir.data import TensorData
from torch_ir.ir.document import Limits, write_bytes
from torch_ir.ir.values import DTYPES

INLINE_LIMIT = 1 << 16  # bytes of a constant that stay in the file's text, where they are 88 KiB of base64
_NAME = re.compile(r"[\w.+-]+\.constants-[0-9a-f]{12}\.safetensors")
# The dtypes that every reader of safetensors knows; others lie there as plain bytes.
_SAFETENSORS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip

Place = dict[str, Any]  # {"file": name, "offset": where its bytes begin, "digest": of these bytes}


class SideFile:
    """The contents of a side file to be written beside `target`, and the place of each constant in it."""

    def __init__(self, target: Path, constants: Iterable[tuple[str, TensorData]]) -> None:
        named = sorted(_named(constants).items(), key=lambda item: -DTYPES[item[0].dtype])  # large ones first: aligned
        header = _header((name, data) for data, name in named)
        self.content = b"".join([header, *(data.raw for data, _ in named)])
        self.path = target.with_name(f"{_own(target)}{_sha256(self.content)[:12]}.safetensors")
        self.places: dict[TensorData, Place] = {}
        offset = len(header)
        for data, _ in named:
            digest = f"sha256:{_sha256(data.raw)}"
            self.places[data] = {"file": self.path.name, "offset": offset, "digest": digest}
            offset += data.size


def _own(target: Path) -> str:
    """How the names of side files of a graph's file begin."""
    return re.sub(r"[^\w.+-]", "_", target.name) + ".constants-"


def _named(constants: Iterable[tuple[str, TensorData]]) -> dict[TensorData, str]:
    """Each constant once, under its key or a free name like it."""
    names: dict[TensorData, str] = {}
    taken = {"__metadata__"}  # which the format keeps for itself
    for key, data in constants:
        if data not in names:
            name, number = key, 1
            while name in taken:
                name, number = f"{key}_{number}", number + 1
            taken.add(name)
            names[data] = name
    return names


def _header(named: Iterable[tuple[str, TensorData]]) -> bytes:
    """The length of a JSON object, and that object: from name to dtype, shape and range of bytes."""
    entries = {}
    start = 0
    for name, data in named:
        dtype = _SAFETENSORS.get(data.dtype)
        shape = list(data.shape) if dtype else [data.size]
        entries[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [start, start + data.size]}
        start += data.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_pair(target: Path, text: str, side: SideFile | None) -> None:
    """Write a graph's file and its side file such that the old pair is whole until the new one is.

    The new side file has a name of its own, the graph's file replaces the old one in one step, and only then the side
    file that the old one spoke of goes away.
    """
    old = side_files(target)
    is_new = side is not None and not side.path.exists()
    try:
        if side is not None:
            write_bytes(side.path, side.content)
        write_bytes(target, text.encode())
    except BaseException:
        if side is not None and is_new:
            side.path.unlink(missing_ok=True)
        raise
    for path in old:
        if side is None or path != side.path:
            with suppress(OSError):  # a file that another process holds open may not be removable; it does no harm
                path.unlink()


def side_files(target: Path) -> list[Path]:
    """The side files that lie beside a graph's file under its name, and that it speaks of."""
    try:
        beside = [name for name in os.listdir(target.parent) if name.startswith(_own(target))]
        text = target.read_bytes() if beside else b""
    except OSError:
        return []
    return [target.with_name(name) for name in beside if _NAME.fullmatch(name) and name.encode() in text]


class Folder:
    """The folder of a graph's file, where side files are looked for."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._open: dict[str, _OpenFile] = {}

    def find(self, name: str, shape: tuple[int, ...], dtype: str, offset: int, digest: str, path: str) -> TensorData:
        """A constant that will be read when it is asked for; that its bytes are all there is known now."""
        if not _NAME.fullmatch(name):
            raise SerializationError(f"{name!r:.80} is not the name of a side file", f"{path}.file")
        if name not in self._open:
            self._open[name] = _OpenFile(self.path / name, self.limits)
        data = StoredData(shape, dtype, self._open[name], offset, digest)
        if not 0 <= offset <= self._open[name].size - data.size:
            raise SerializationError(f"{self.path / name} is cut short: it does not hold these bytes", path)
        return data


class _OpenFile:
    """A side file, held open: a later save may remove its name, but not what this graph still has to read."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            if path.is_symlink():
                raise SerializationError(f"{path} is a link; side files must be files")
            self._file = os.fdopen(os.open(path, flags), "rb")
        except OSError as error:
            kind = MissingFileError if isinstance(error, FileNotFoundError) else SerializationError
            raise kind(f"cannot read the constants in {path}: {error.strerror or error}") from None
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        facts = os.fstat(self._file.fileno())
        self.size = facts.st_size
        if not stat.S_ISREG(facts.st_mode):
            raise SerializationError(f"{path} is not a plain file")
        if self.size > limits.file_bytes:
            raise SerializationError(f"{path}: {self.size} bytes are more than {limits.file_bytes}")

    def read(self, start: int, size: int) -> bytes:
        with self._lock:  # threads share the position
            self._file.seek(start)
            return self._file.read(size)


class StoredData(TensorData):
    """The elements of a constant in a side file, read and checked at first use."""

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
            raise SerializationError(f"{file.path} is damaged: a constant in it is not what was written")
        self._check_bytes(raw)
        return raw

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorData, (self.shape, self.dtype, self.raw)


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
