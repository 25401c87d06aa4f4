"""GGUF files whose counts, sizes, offsets and fields are wrong, or expand without end."""

import struct
from pathlib import Path

from tests.hostile_files.case import Family, Make

FAMILY = Family("GGUF", opens="weights")
_F32, _Q8, _UNKNOWN = 0, 8, 4  # formats of tensors
_UINT32, _INT32, _STRING, _ARRAY = 4, 5, 8, 9  # types of fields


def _text(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def _number(name: str, value: int, kind: int = _UINT32) -> bytes:
    return _text(name) + struct.pack("<II", kind, value & 0xFFFFFFFF)


def _named(name: str, value: str) -> bytes:
    return _text(name) + struct.pack("<I", _STRING) + _text(value)


def _tensor(name: str | bytes, dims: list[int], kind: int = _F32, offset: int = 0) -> bytes:
    return _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


_LLAMA = (_named("general.architecture", "llama"), _number("llama.block_count", 2))


def _file(
    tensors: tuple[bytes, ...] = (), fields: tuple[bytes, ...] = (), data: bytes = b"", version: int = 3, extra: int = 0
) -> Make:
    def make(folder: Path) -> Path:
        counts = struct.pack("<IQQ", version, len(tensors) + extra, len(fields))
        header = b"GGUF" + counts + b"".join(fields) + b"".join(tensors)
        (folder / "w.gguf").write_bytes(header + bytes(-len(header) % 32) + data)
        return folder / "w.gguf"

    return make


def _array(kind: int, count: int, items: bytes) -> bytes:
    return _text("tokens") + struct.pack("<IIQ", _ARRAY, kind, count) + items


for name, make in [
    ("version 99", _file(version=99)),
    ("more tensors than bytes", _file(extra=900_000)),
    ("2^63 tensors", _file(extra=1 << 63)),
    ("tensors that overlap", _file(tuple(_tensor(f"t{n}", [1 << 18]) for n in range(2000)), data=bytes(1 << 20))),
    ("a tensor twice", _file((_tensor("a", [4]), _tensor("a", [4])), data=bytes(16))),
    ("2^64 - 1 rows of nothing", _file((_tensor("a", [0, (1 << 64) - 1]),))),
    ("no dimensions", _file((_tensor("a", []),), data=bytes(16))),
    ("five dimensions", _file((_tensor("a", [1] * 5),), data=bytes(16))),
    ("half a block", _file((_tensor("a", [16], _Q8),), data=bytes(34))),
    ("an unknown format", _file((_tensor("a", [32], _UNKNOWN),), data=bytes(34))),
    ("data beyond the file", _file((_tensor("a", [1 << 20]),), data=bytes(16))),
    ("an offset of 2^64 - 32", _file((_tensor("a", [4], offset=(1 << 64) - 32),), data=bytes(16))),
    ("an offset that is not aligned", _file((_tensor("a", [4], offset=1),), data=bytes(32))),
    ("a name that is not UTF-8", _file((_tensor(b"\xff", [4]),), data=bytes(16))),
    ("a name of 2^40 bytes", _file((struct.pack("<Q", 1 << 40),), data=bytes(16))),
    ("alignment 0", _file(fields=(_number("general.alignment", 0),))),
    ("alignment of text", _file(fields=(_named("general.alignment", "32"),))),
    ("a field twice", _file(fields=(_number("a", 1), _number("a", 1)))),
    ("a field of unknown type", _file(fields=(_text("a") + struct.pack("<I", 77),))),
    ("an array of arrays", _file(fields=(_array(_ARRAY, 2, struct.pack("<IQ", _ARRAY, 2) * 9),))),
    ("5 million empty texts", _file(fields=(_array(_STRING, 5_000_000, bytes(40_000_000)),))),
    ("an array of 2^60 texts", _file(fields=(_array(_STRING, 1 << 60, b""),))),
    ("minus one heads", _file((_tensor("blk.0.attn_q.weight", [32, 4]),),
                              (*_LLAMA, _number("llama.attention.head_count", -1, _INT32)), bytes(512))),
    ("no number of heads", _file((_tensor("blk.0.attn_q.weight", [32, 4]),), _LLAMA, bytes(512))),
]:  # fmt: skip
    FAMILY.refused(name, make, "R14", r"w\.gguf")


NO_ROWS = _file((_tensor("a", [32, 0], _Q8), _tensor("b", [0, 4], _Q8)))  # valid, and needs the package of the format
