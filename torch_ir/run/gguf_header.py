"""Headers of GGUF files, parsed as untrusted input: every count, length and offset is bounded before it is used."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from torch_ir.errors import WeightLoadError
from torch_ir.ir.files.regular_file import open_regular

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_TENSORS, _MOST_FIELDS, _MOST_ITEMS = 1_000_000, 100_000, 16_000_000
_MOST_TEXTS = 4_000_000  # in all arrays
_LARGEST_DIM = 1 << 48
_LONGEST_NAME, _LONGEST_TEXT, _MOST_DIMS = 512, 1 << 20, 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}  # by type
_ALIGNMENT = "general.alignment"


class Entry(NamedTuple):
    """A tensor of a GGUF file: its GGML type, its shape as torch has it, and where its bytes begin."""

    kind: int
    shape: tuple[int, ...]
    offset: int


class Header(NamedTuple):
    """The scalar fields and short texts of a GGUF file, its tensors, and its size and modification time."""

    fields: dict[str, Any]
    tensors: dict[str, Entry]
    stamp: tuple[int, int]


def read_gguf_header(path: Path) -> Header:
    """Return the header of a GGUF file; raise WeightLoadError if it is not one, or exceeds a limit."""
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            facts = os.fstat(file.fileno())
            return _Reader(file, facts.st_size).header((facts.st_size, facts.st_mtime_ns))
    except OSError as error:
        raise WeightLoadError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise WeightLoadError(f"{path} is not a GGUF file: {error}") from None


class _Reader:
    """Reads little-endian values in order, never past the end of the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.at = file, size, 0
        self.texts = 0

    def header(self, stamp: tuple[int, int]) -> Header:
        if self.take(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self.number("I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not supported; expected one of {_VERSIONS}")
        tensors = self.count("Q", _MOST_TENSORS, "tensors")
        fields: dict[str, Any] = {}
        for _ in range(self.count("Q", _MOST_FIELDS, "fields")):
            name = self.text(_LONGEST_NAME)
            if name in fields:
                raise ValueError(f"the field {name!r:.80} occurs twice")
            fields[name] = self.value(self.number("I"))
        entries: dict[str, Entry] = {}
        for _ in range(tensors):
            name = self.text(_LONGEST_NAME)
            if name in entries:
                raise ValueError(f"the tensor {name!r:.80} occurs twice")
            rank = self.count("I", _MOST_DIMS, f"dimensions of {name!r:.80}")
            dims = [self.count("Q", _LARGEST_DIM, f"elements in a dimension of {name!r:.80}") for _ in range(rank)]
            entries[name] = Entry(self.number("I"), tuple(reversed(dims)), self.number("Q"))
        alignment = fields.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise ValueError(f"{_ALIGNMENT} is {alignment!r:.80}, not a power of two from 8")
        first = -(-self.at // alignment) * alignment
        for name, entry in entries.items():
            if entry.offset % alignment:
                raise ValueError(f"{name!r:.80} is not aligned to {alignment} bytes")
        return Header(
            fields, {name: each._replace(offset=first + each.offset) for name, each in entries.items()}, stamp
        )

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise ValueError(f"it ends within its header, at byte {self.at}")
        self.at += count
        return self.file.read(count)

    def skip(self, count: int) -> None:
        if count > self.size - self.at:
            raise ValueError(f"it ends within its header, at byte {self.at}")
        self.at += count
        self.file.seek(self.at)

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def count(self, form: str, most: int, what: str) -> int:
        found = self.number(form)
        if found > most:
            raise ValueError(f"{found} {what} are more than {most}")
        return int(found)

    def text(self, most: int) -> str:
        return self.take(self.count("Q", most, "bytes of text")).decode()

    def value(self, kind: int) -> Any:
        """Return a scalar or a text; arrays are skipped, as nothing here needs them."""
        if kind == _STRING:
            length = self.number("Q")
            if length <= _LONGEST_TEXT:
                return self.take(length).decode()
            return self.skip(length)
        if kind == _ARRAY:
            return self.skip_array()
        if kind not in _SCALARS:
            raise ValueError(f"a field has the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def skip_array(self) -> None:
        kind = self.number("I")
        count = self.count("Q", _MOST_ITEMS, "items of an array")
        if kind in _SCALARS:
            self.skip(count * struct.calcsize(f"<{_SCALARS[kind]}"))
        elif kind == _STRING:
            self.texts += count
            if self.texts > _MOST_TEXTS:
                raise ValueError(f"its arrays have more than {_MOST_TEXTS} texts")
            for _ in range(count):
                self.skip(self.number("Q"))
        else:
            raise ValueError(f"an array has items of the unsupported type {kind}")
