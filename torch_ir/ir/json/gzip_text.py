"""Graph files compressed with gzip: deterministic bytes to write, bounded memory to read.

A name that ends in `.gz` is written compressed. A file is read as gzip if it begins with gzip's magic bytes, whatever
its name.
"""

from __future__ import annotations

import os
import zlib

from torch_ir.errors import SerializationError
from torch_ir.ir.checks.limits import Limits, allow_more
from torch_ir.ir.json.json_text import decode_text, read_bytes

MAGIC = b"\x1f\x8b"
_HEADER = MAGIC + b"\x08\0\0\0\0\0\0\xff"  # deflate, no flags, time 0, no file name, unknown system
_DEFLATE, _GZIP = -15, 31  # zlib's names of a bare stream, and of one with gzip's header and trailer
_GIVEN, _PIECE = 1 << 16, 1 << 20  # input and output buffer sizes while counting bytes


def is_gzip_name(path: str | os.PathLike[str]) -> bool:
    """Whether a file of this name is written compressed."""
    return os.fsdecode(path).lower().endswith(".gz")


def compress(data: bytes) -> bytes:
    """Return a gzip file of `data`; equal data give equal bytes with the same version of zlib."""
    deflate = zlib.compressobj(wbits=_DEFLATE)
    body = deflate.compress(data) + deflate.flush()
    return _HEADER + body + zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little")


def decompress(data: bytes, path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a gzip file; refuse more than `most` bytes, damage, and data after the stream."""
    try:
        size = _count(data, path, most)
        return zlib.decompress(data, wbits=_GZIP, bufsize=max(1, size))
    except zlib.error as error:
        raise _damaged(path, str(error).rpartition(": ")[2]) from None


def first_bytes(data: bytes) -> bytes:
    """Return the first bytes of a gzip file's content from its own first bytes; empty if it is damaged."""
    try:
        return zlib.decompressobj(wbits=_GZIP).decompress(data, len(data))
    except zlib.error:
        return b""


def _count(data: bytes, path: str | os.PathLike[str], most: int) -> int:
    """Return the decompressed size without keeping the data: the size stated in the file may be wrong."""
    stream, count = zlib.decompressobj(wbits=_GZIP), 0
    for start in range(0, len(data), _GIVEN):
        given = data[start : start + _GIVEN]
        while given and not stream.eof:
            count += len(stream.decompress(given, _PIECE))
            given = stream.unconsumed_tail
            if count > most:
                message = f"{os.fspath(path)}: the gzip data expand to more than {most} bytes"
                raise SerializationError(message, rule="R2", hint=allow_more("expanded_bytes"))
        if stream.unused_data or (stream.eof and start + _GIVEN < len(data)):
            raise _damaged(path, "data follow the end of the stream")
    if not stream.eof:
        raise _damaged(path, "it is truncated")
    return count


def _damaged(path: str | os.PathLike[str], why: str) -> SerializationError:
    return SerializationError(f"{os.fspath(path)} is damaged gzip data: {why}", rule="R1")


def read_graph_text(path: str | os.PathLike[str], limits: Limits = Limits()) -> str:
    """Return the text of a graph's file, decompressed where it is gzip."""
    data = read_bytes(path, limits)
    if data.startswith(MAGIC):
        data = decompress(data, path, limits.expanded_bytes)
    return decode_text(data, path)
